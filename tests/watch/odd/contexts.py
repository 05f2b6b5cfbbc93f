"""Context variables and an event loop: steps of training between other tasks, and in an executor."""
import asyncio, contextvars
import torch
from torch import nn
from training import batches, digest, small

step = contextvars.ContextVar("step", default=-1)

async def tick(num):
    for number in range(num):
        print("tick", number, step.get())
        await asyncio.sleep(0)

async def work(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loop = asyncio.get_running_loop()
    for number, (x, y) in enumerate(batches()):
        step.set(number)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        if number % 2:
            await loop.run_in_executor(None, loss.backward)
        else:
            loss.backward()
        optimizer.step()
        await asyncio.sleep(0)
    return contextvars.copy_context()[step]

async def main():
    ticking = asyncio.create_task(tick(3))
    result = await asyncio.create_task(work(model))
    await ticking
    process = await asyncio.create_subprocess_exec("true")
    print(await process.wait())
    return result

model = small()
print(asyncio.run(main(), debug=False), step.get(), digest(model))
