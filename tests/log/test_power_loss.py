"""The machine loses its power: only what was fsynced is sure to be there, and that must be enough.

The disk below forgets as a file system may: a file keeps what was synced and some beginning of what came after, a
directory keeps the names of its last sync or those of the last moment.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.log.disk import NOW, InlineFiles, batch, crash, end, open_log, read_all, send

DAY_MS = 86_400_000


class ForgetfulFiles(InlineFiles):
    """Remembers what was synced, by inode, so that `lose_power` can take the rest away."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: dict[int, bytes] = {}
        self.names: dict[str, dict[str, int]] = {}
        self._graveyard = tempfile.TemporaryDirectory()
        self._graves = itertools.count()

    def sync(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        self.synced[status.st_ino] = os.pread(descriptor, status.st_size, 0)

    def sync_directory(self, path: str | os.PathLike[str]) -> None:
        self.names[os.fspath(path)] = self._names(os.fspath(path))

    def rename(self, source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
        self._keep_inode(target)
        super().rename(source, target)

    def remove(self, path: str | os.PathLike[str]) -> None:
        self._keep_inode(path)
        super().remove(path)

    def _keep_inode(self, path: str | os.PathLike[str]) -> None:
        """A removed file keeps its number, so that no later file is taken for it."""
        if os.path.exists(path):
            os.link(path, os.path.join(self._graveyard.name, str(next(self._graves))))

    @staticmethod
    def _names(directory: str) -> dict[str, int]:
        with os.scandir(directory) as entries:
            return {entry.name: entry.inode() for entry in entries if entry.is_file()}

    def lose_power(self, directory: Path, target: Path, fraction: float, *, old_names: bool) -> None:
        """What the next start may find: `fraction` of the bytes nobody synced, and the names of then or of now."""
        now = self._names(str(directory))
        contents = {inode: (directory / name).read_bytes() for name, inode in now.items()}
        names = self.names.get(str(directory), {}) if old_names else now
        target.mkdir(parents=True)
        for name, inode in names.items():
            synced = self.synced.get(inode, b"")
            written = contents.get(inode, synced)
            kept = len(synced) + int((len(written) - len(synced)) * fraction) if len(written) > len(synced) else None
            (target / name).write_bytes(synced if kept is None else written[:kept])


steps = st.lists(
    st.sampled_from(["put", "put", "put", "commit", "abort", "flush", "roll", "retain", "compact"]),
    min_size=1,
    max_size=40,
)


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(steps, st.floats(0, 1), st.booleans(), st.booleans())
def test_what_was_flushed_is_there_and_the_rest_is_whole_or_absent(
    history: list[str], fraction: float, old_names: bool, compacted: bool
) -> None:
    """C1, C2"""
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        files = ForgetfulFiles()
        policy = {"cleanup_policy": "compact" if compacted else "delete", "segment_bytes": 600}
        log = open_log(root / "a", files=files, **policy)
        # A broker makes a new partition known to others only after this.
        files.sync_directory(root / "a" / "t-0")
        for path in (root / "a" / "t-0").iterdir():
            files.sync_path(path)
        sequence, ended, flushed, facts = 0, 0, 0, log.producers.facts()
        for number, step in enumerate(history):
            if step == "put":
                log.append(batch(1, sequence, b"%d" % number * 20, keys=[b"%d" % (number % 5)]), NOW)
                sequence += 1
            elif step in ("commit", "abort"):
                send(log, 7, ended, b"t")
                ended += 1
                end(log, 7, commit=step == "commit")
            elif step == "flush":
                flushed, facts = log.flush(), log.producers.facts()
            elif step == "roll":
                log.roll(NOW)
            elif step == "retain":
                log.delete_records_before(min(flushed, log.high_watermark))
                log.retain(NOW)
            else:
                log.compact(NOW, force=True)
        before = read_all(log)
        files.lose_power(root / "a" / "t-0", root / "b" / "t-0", fraction, old_names=old_names)
        for checkpoint in (root / "a").glob("*-checkpoint"):
            shutil.copy(checkpoint, root / "b")
        crash(log)
        again = open_log(root / "b", clean=False, **policy)
        assert again.end_offset >= flushed
        offsets = [record.offset for record in read_all(again)]
        wanted = [record for record in before if again.log_start_offset <= record.offset < again.end_offset]
        assert offsets == sorted(set(offsets))
        # A swap that was not durable yet leaves the older segments, with more in them and never less.
        assert {record.offset for record in wanted} <= set(offsets)
        by_offset = {record.offset: record for record in before}
        for record in read_all(again):
            if record.offset in by_offset:
                assert record == by_offset[record.offset]
        if again.end_offset == flushed:
            assert again.producers.facts() == facts
        again.append(batch(99, 0), NOW)

