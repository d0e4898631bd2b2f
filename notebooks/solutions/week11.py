"""Solutions of week 11: offload."""


def least_link_bytes(room, params, passes):
    """Spend the room where it saves most: 2 bytes of each parameter first, then the other 14."""
    here = min(params, room / 2)  # at least their own 2 bytes stay
    alone = min(here, max(0.0, here - (room - 2 * here) / 14))  # no more than these
    return alone * (2 + 2) + (params - here) * (2 + 2 * passes)


def needed_bandwidth(share, moved, tokens, flops_per_second, recompute, overlap):
    """Solve the efficiency for the seconds of the link, for one parameter."""
    compute = tokens * (2 + 4 + 2 * recompute) / flops_per_second
    step = compute / share
    return moved / (step if overlap else step - compute)


def delayed_step(parameters, master, waiting, gradient, update):
    """Compute with what the GPU has; update with the last gradient; hand both on."""
    new = gradient(parameters)
    updated = master if waiting is None else update(master, waiting)
    return updated.float(), updated, new
