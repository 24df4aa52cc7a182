"""What `luma::grouped_mm` and `luma::grouped_outer` promise, on every target.

Rows lie sorted by group, and group e has group_sizes[e] of them, one group after the other:

    grouped_mm(rows[n, i], weights[groups, i, o], group_sizes int32[groups], transposed=False)
              -> [n, o]      row r of group e gives rows[r] @ weights[e]
    grouped_mm(rows[n, i], weights[groups, o, i], group_sizes, transposed=True)
              -> [n, o]      row r of group e gives rows[r] @ weights[e].T
    grouped_outer(left[n, i], right[n, o], group_sizes)
              -> [groups, i, o]      group e gives the sum of outer(left[r], right[r]) over its rows

A group may be empty; its product of nothing is zero. Rows behind the last group belong to none:
their result is zero, and they count for nothing in `grouped_outer`. The sum of the sizes is at most
n and no size is negative; both are the caller's to see to, since sizes are data. Sums are float32
whatever the inputs' dtype; a result has the rows' (left's) dtype.

The two are each other's derivatives. With g the gradient of grouped_mm's result, that of the rows
is grouped_mm(g, weights, group_sizes, not transposed), and that of the weights is
grouped_outer(rows, g, group_sizes), or grouped_outer(g, rows, group_sizes) if transposed.
"""

from __future__ import annotations

from dataclasses import dataclass

OP = "luma.grouped_mm.default"
OUTER_OP = "luma.grouped_outer.default"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedSizes:
    """The sizes of one grouped product.

    Attributes:
        rows: rows of all groups together, and those of none.
        groups: number of groups.
        inner: length of a row that goes in (of `left`'s, for grouped_outer).
        outer: length of a row that comes out (of `right`'s).
    """

    rows: int
    groups: int
    inner: int
    outer: int


def sizes_of_product(
    rows: tuple[int, ...], weights: tuple[int, ...], group_sizes: tuple[int, ...], transposed: bool
) -> GroupedSizes:
    """Check the shapes of grouped_mm's arguments against the contract and give their sizes.

    Raises:
        ValueError: a shape that the contract does not allow.
    """
    if len(rows) != 2 or len(weights) != 3:
        message = f"grouped_mm takes rows [n, in] and weights [groups, in, out]; got {rows}, "
        raise ValueError(f"{message}{weights}")
    inner, outer = weights[:0:-1] if transposed else weights[1:]
    if rows[1] != inner or group_sizes != weights[:1] or not weights[0]:
        message = f"grouped_mm's rows {rows}, weights {weights} and group sizes {group_sizes}"
        how = "transposed" if transposed else "not transposed"
        raise ValueError(f"{message} do not fit together ({how})")
    return GroupedSizes(rows=rows[0], groups=weights[0], inner=inner, outer=outer)


def sizes_of_outer(
    left: tuple[int, ...], right: tuple[int, ...], group_sizes: tuple[int, ...]
) -> GroupedSizes:
    """Check the shapes of grouped_outer's arguments against the contract and give their sizes.

    Raises:
        ValueError: a shape that the contract does not allow.
    """
    if len(left) != 2 or len(right) != 2 or left[0] != right[0]:
        message = f"grouped_outer takes left [n, in] and right [n, out]; got {left}, {right}"
        raise ValueError(message)
    if len(group_sizes) != 1 or not group_sizes[0]:
        message = f"grouped_outer takes the sizes of one or more groups; got shape {group_sizes}"
        raise ValueError(message)
    return GroupedSizes(rows=left[0], groups=group_sizes[0], inner=left[1], outer=right[1])
