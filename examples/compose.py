# SPDX-License-Identifier: MIT
"""Compose an engine and use it in each way: a list, a stream, asyncio, an abort, its state."""

from __future__ import annotations

import asyncio

from tokenspeed_core import LocalEngine, compose


async def ask_at_once(engine: LocalEngine, prompts: list[str]) -> list[str]:
    """Read several streams in one event loop."""
    streams = [engine.astream(prompt, max_new_tokens=8, temperature=0) for prompt in prompts]
    return [(await stream.completion()).text for stream in streams]


def main() -> None:
    """Run each way in turn."""
    with compose("smollm2-135m", max_batch_size=8) as engine:
        paris = engine.generate("The capital of France is", max_new_tokens=8, temperature=0)
        print(paris.text, paris.finish_reason, paris.usage)

        prompts = ["One, two, three,", "Monday, Tuesday,"]
        for completion in engine.generate(prompts, max_new_tokens=6, temperature=0):
            print(completion.text)

        question = [{"role": "user", "content": "Name a colour."}]
        for text in engine.chat(question, max_new_tokens=16, temperature=0):
            print(text, end="", flush=True)
        print()

        print(asyncio.run(ask_at_once(engine, prompts)))

        # Leaving a stream aborts its request in the next round: nothing runs on for nobody.
        with engine.stream("Once upon a time", max_new_tokens=500) as stream:
            print(next(stream))
        print(engine.state)


if __name__ == "__main__":
    main()
