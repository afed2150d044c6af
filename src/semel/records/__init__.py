"""Record batches, format v2: the bytes that a producer sends, the log stores and a consumer receives, all the same.

Nothing here waits, reads a clock or opens a file. A batch is looked at through its header without touching its
records; the loops that do touch records come in two equal versions, compiled and plain Python (`_select`).
"""
