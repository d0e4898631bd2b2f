"""Solutions of week 14: faults; cost."""

import json
import math


def best_interval(write, of_one, gpus):
    """Daly's series in the share of a checkpoint in twice the time between faults."""
    between = of_one / gpus
    share = write / 2 / between
    if share >= 1:
        return between
    root = math.sqrt(share)
    return 2 * between * root * (1 + root / 3 + share / 9) - write


def days_of_training(days, every, write, restart, between):
    """The time of a stretch that begins again at each fault, over its training."""
    stretch = math.exp((every + write) / between) - 1
    return days * between / every * math.exp(restart / between) * stretch


def commit(store, step, shards):
    """New names for the shards, one put that names them all, and then the cleaning."""
    where = {}
    for rank, data in shards.items():
        where[rank] = f"step-{step}-{rank}"
        store.put(where[rank], data)
    store.put("newest", json.dumps({"step": step, "shards": where}).encode())
    for old in set(store.names()) - {"newest", *where.values()}:
        store.delete(old)


def dollars_of_training(params, tokens, gpus, rate, price, of_one, write, restart):
    """The hours of all GPUs, with those that faults and checkpoints cost."""
    between = of_one / gpus
    every = math.sqrt(2 * write * between)
    stretch = math.exp((every + write) / between) - 1
    slower = between / every * math.exp(restart / between) * stretch
    return price * slower * 6 * params * tokens / (3600 * rate)


def spot_policy(now):
    """Cheap while there is time; safe from the last call on."""
    if now.last_call or now.using == "on demand":
        return "on demand"
    return "spot" if now.spot else "wait"
