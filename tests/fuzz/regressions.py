"""Inputs that failed once, by target: what was wrong, and the bytes as hex. They run with every `make test`."""

from __future__ import annotations

REGRESSIONS: dict[str, dict[str, str]] = {
    "settings": {
        "a JAAS module of dots had no name": b"\x01Module..... required username=a;".hex(),
        "two escapes were two halves of a letter": b"\0a=\\ud83d\\ude00".hex(),
        "an escape without four digits was taken as the letter u": b"\0a=\\u12".hex(),
        "a comment after a lone backslash was a setting": b"\0\\\n#b=c".hex(),
    },
    "recovery": {
        "producer state was rebuilt from a batch that claims a wrong offset": (
            "012001dbdbdbdbdbdbdbdb00091405100300030b050049"
        ),
        "an index was rebuilt from a batch that claims a far offset: OverflowError": "0304040300290905ffffffffffffffff",
        "a snapshot that recovery had removed was asked for again: FileNotFoundError": (
            "d2fdc801dee07b7700070500370905ffffffffff00000000"
        ),
    },
    "names": {
        "a repetition that re cannot count was an OverflowError": b"\x02RULE:a{99999999999}/x/".hex(),
        "groups in groups in groups were a RecursionError": (b"\x02RULE:" + b"(" * 400 + b")" * 400 + b"/x/").hex(),
    },
    "tokens": {
        "a time of four hundred digits was an OverflowError": (
            bytes([1, 3, 0, 1, 2, 0]) + b'{"sub":"alice","exp":1' + b"0" * 400 + b"}"
        ).hex(),
    },
    "files": {
        "an entry of SCRAM credentials that holds lists was a TypeError": b"\x080\n[[]]".hex(),
        "an entry of settings that holds numbers was an AttributeError": b'\x080\n{"a":5}'.hex(),
        "lists in lists in lists were a RecursionError": (b"\x080\n" + b"[" * 100_000).hex(),
        "a file of expected files with another form was a ValueError": b"\x07x\n".hex(),
        "a manifest with another form was a KeyError": b"\x06{}\n".hex(),
        "a manifest that is not UTF-8 was a UnicodeDecodeError": b"\x06\xff\n".hex(),
    },
}
