"""Nothing is piped in: the script ends with an error as it asks."""
from training import small, train

train(small())
input("a line: ")
