"""Contenders that search in their own process: one program each, which answers lines of JSON on stdin.

`{"do": …}` in, `{"seconds": s, "lines": n}` out; `{"ready": true}` comes first. End of file ends the program.
They import nothing of ours: the peers run in environments of their own.
"""
