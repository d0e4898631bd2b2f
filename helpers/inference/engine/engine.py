"""The engine's loop: take what has arrived, ask the policy, run the step, record, repeat."""

from bisect import insort
from collections.abc import Iterable
from operator import attrgetter

from helpers.inference.engine.clock import Clock, RealTime
from helpers.inference.engine.metrics import Served, Step
from helpers.inference.engine.plan import Plan, Queues, Work, check_plan, work_of
from helpers.inference.engine.policies import Policy
from helpers.inference.engine.request import Job, Request
from helpers.inference.engine.runner import Piece, Runner
from helpers.inference.reading import check_prompt
from helpers.models.gpt import GPT

ORDER = attrgetter("order")  # of jobs in a queue


class Engine:
    """Serve requests with one model and one paged cache.

    Whatever the policy, a request gets the tokens that it would get alone: its random numbers
    depend on its seed and on the token's place. Its logits are those of another batch; they differ
    by rounding alone.

    Args:
        policy: plans the steps: `Static`, `Continuous`, `Chunked`, or an object with their method.
        blocks: of the cache.
        block_size: tokens in a block.
        share_prefixes: whether a request starts with the known blocks of an earlier prompt.
        fused: compute with a copy of the weights that is arranged for decoding: faster, for Llama's
            shape alone.

    Raises:
        ValueError: the model's prefixes cannot be shared, or its weights cannot be fused.
    """

    def __init__(
        self,
        model: GPT,
        policy: Policy,
        blocks: int,
        block_size: int = 16,
        *,
        share_prefixes: bool = False,
        fused: bool = False,
    ):
        self.runner = Runner(model, blocks, block_size, share_prefixes=share_prefixes, fused=fused)
        self.config, self.policy = model.config, policy

    def run(self, requests: Iterable[Request], clock: Clock | None = None) -> Served:
        """Serve all requests to their end.

        Args:
            clock: `RealTime` or `Virtual`; None: real time.

        Raises:
            ValueError: two requests have one number, or a plan cannot be carried out.
            RuntimeError: the policy's plan is empty, and no request is to arrive.
        """
        jobs = sorted((Job(r, self.config.context) for r in requests), key=ORDER)
        if len({job.number for job in jobs}) < len(jobs):
            raise ValueError("two requests have the same number; give each its own")
        run = Run(self, jobs, clock or RealTime())
        try:
            run.serve()
        finally:
            self.runner.release_all()
        outcomes = sorted((job.outcome() for job in jobs), key=lambda outcome: outcome.number)
        return Served(
            policy=self.policy, requests=outcomes, steps=run.steps, blocks=self.runner.blocks
        )


class Run:
    """One call of `Engine.run`.

    Attributes:
        coming: requests that have not arrived; the first is the next.
        waiting, running: the queues, in order of arrival.
        ended: how many requests ended since `running` was last empty.
    """

    def __init__(self, engine: Engine, jobs: list[Job], clock: Clock):
        self.runner, self.policy, self.config = engine.runner, engine.policy, engine.config
        self.clock = clock
        self.coming: list[Job] = list(jobs)
        self.waiting: list[Job] = []
        self.running: list[Job] = []
        self.ended = self.reserved = 0
        self.steps: list[Step] = []

    def serve(self):
        self.clock.start()
        now = 0.0
        while True:
            self.arrive(now)
            if not (self.coming or self.waiting or self.running):
                return
            queues = self.queues()
            plan = self.policy.plan(queues) if self.waiting or self.running else Plan()
            check_plan(plan, queues)
            if plan.tokens:
                now = self.step(plan, now)
            elif self.coming:
                self.clock.wait(self.coming[0].request.arrival)
                now = self.clock.now
            else:
                raise RuntimeError(
                    f"{self.policy} plans no work for {len(self.waiting)} waiting and "
                    f"{len(self.running)} running requests, and no request is to arrive; a policy "
                    "must plan at least one token"
                )

    def arrive(self, now: float):
        """Move the requests that have arrived to the waiting ones, or end them with the reason."""
        while self.coming and self.coming[0].request.arrival <= now:
            job = self.coming.pop(0)
            if wrong := check_prompt(job.request.prompt, self.config) or self.too_long(job):
                job.end(f"error: {wrong}", now)
            elif not job.request.new_tokens:
                job.end("length", now)
            else:
                insort(self.waiting, job, key=ORDER)

    def too_long(self, job: Job) -> str:
        """Say why the cache can never have the request; "" if it can."""
        needed = self.queues().blocks_for(job.limit)
        if needed <= self.runner.blocks:
            return ""
        return (
            f"the request may need {needed} blocks, but the cache has {self.runner.blocks}: ask "
            "for fewer new tokens, or make the engine with more blocks"
        )

    def leave(self, job: Job, reason: str, now: float):
        """End a job that runs."""
        job.end(reason, now)
        self.running.remove(job)
        self.runner.release(job.number)
        self.ended = self.ended + 1 if self.running else 0

    def queues(self) -> Queues:
        return Queues(
            waiting=tuple(job.progress() for job in self.waiting),
            running=tuple(job.progress(self.runner.held(job.number)) for job in self.running),
            free=self.runner.free,
            blocks=self.runner.blocks,
            block_size=self.runner.block_size,
            ended=self.ended,
            reserved=self.reserved if self.running else 0,
        )

    def step(self, plan: Plan, start: float) -> float:
        """Carry out a plan, and return the time after it."""
        own = {job.number: job for job in (*self.waiting, *self.running)}
        for number in plan.preempted:
            self.preempt(own[number], start)
        counts = [(own[number], self.start(own[number], n)) for number, n in plan.tokens.items()]
        before = [(job.progress(), count) for job, count in counts]
        work = work_of(before, plan.padding)
        results = self.runner.step([self.piece(job, n) for job, n in counts], plan.padding)
        self.clock.spend(work)
        now = self.clock.now
        for (job, count), (progress, _) in zip(counts, before, strict=True):
            job.computed(count, "decode" if progress.decodes else "prefill", start, now)
        self.record(plan, work, start, now)
        for number, result in results.items():
            self.take(own[number], result, now)
        return now

    def preempt(self, job: Job, now: float):
        self.runner.release(job.number)
        self.running.remove(job)
        insort(self.waiting, job, key=ORDER)
        job.give_back(now)

    def start(self, job: Job, count: int) -> int:
        """Let a job run if it waits. Return how many tokens to compute: at most `count`.

        They are fewer if the cache has the first tokens of an equal prompt already.
        """
        if job in self.waiting:
            self.waiting.remove(job)
            insort(self.running, job, key=ORDER)
            job.cached = self.runner.start(job.number, job.next_tokens(job.known))
            count = min(count, job.known - job.cached)
        return count

    def piece(self, job: Job, count: int) -> Piece:
        last = job.cached + count == job.known
        return Piece(
            number=job.number,
            tokens=job.next_tokens(count),
            request=job.request if last else None,
            place=job.known,
        )

    def record(self, plan: Plan, work: Work, start: float, end: float):
        self.reserved, used = plan.reserved, self.runner.blocks - self.runner.free
        step = Step(
            start=start,
            end=end,
            work=work,
            running=len(plan.tokens),
            waiting=len(self.waiting),
            used=used,
            reserved=max(used, plan.reserved),
            preempted=len(plan.preempted),
        )
        self.steps.append(step)

    def take(self, job: Job, result: int | str, now: float):
        """Give a job its next token, or end it with the error."""
        if isinstance(result, str):
            self.leave(job, f"error: {result}", now)
            return
        job.add(result, now)
        if job.reason:
            self.leave(job, job.reason, now)
