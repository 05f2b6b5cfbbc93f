"""The script closes all descriptors that it does not know, and opens files of its own in their place."""
import os
from training import digest, small, train

model = small()
train(model)
os.closerange(3, 512)
files = [open(f"file{number}.txt", "w") for number in range(6)]
print([file.fileno() for file in files])
train(model)
for number, file in enumerate(files):
    file.write(f"{number}\n")
    file.close()
print(*(open(f"file{number}.txt").read() for number in range(6)), digest(model))
