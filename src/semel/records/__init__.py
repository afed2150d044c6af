"""Record batches, format v2: the bytes that a producer sends, the log stores and a consumer receives, all the same.

Nothing here waits, reads a clock or opens a file. Most code reads only the header of a
batch. The loops that read records come in two equal versions, compiled and plain Python (`_select`).
"""
