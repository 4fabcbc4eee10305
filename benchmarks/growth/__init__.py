"""How costs grow: tables at several sizes, by processor time, so that other load on the machine hardly shows.

``python -m benchmarks.growth`` prints all of them, ``python -m benchmarks.growth NAME…`` some. A module of this package
is a table: its docstring's first line is the title, ``COLUMNS`` are the headings, and ``rows()`` yields the rows.
"""
