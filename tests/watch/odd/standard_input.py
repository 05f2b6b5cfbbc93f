"""What is piped in is read line by line while the script trains."""
# input: one\ntwo\nthree\nfour\n
import sys
from training import batches, digest, small, train

model = small()
for name in ("first", "second"):
    print(name, input("a line: "))
    train(model)
print(sys.stdin.readline(), sys.stdin.read(), sys.stdin.isatty(), sys.stdin.fileno(), digest(model))
