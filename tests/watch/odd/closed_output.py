"""Standard output is closed before the end."""
import sys
from training import digest, small, train

model = small()
train(model, num=4)
print(digest(model))
sys.stdout.close()
train(model)
sys.stderr.write("end\n")
