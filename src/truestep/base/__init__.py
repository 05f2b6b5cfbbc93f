"""The ground floor: bits, records, files, memory and devices, for the tool and for the library."""
