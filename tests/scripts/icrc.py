"""Recomputes the ICRC of every RoCE v2 packet in capture files, by scapy.contrib.roce, and compares.

    icrc.py FILE...

Prints the number of packets; exits with 1 when one is wrong.
"""

import sys

from scapy.contrib.roce import BTH
from scapy.packet import raw
from scapy.utils import PcapReader

packets = wrong = 0
for path in sys.argv[1:]:
    for number, frame in enumerate(PcapReader(path), start=1):
        if BTH not in frame:
            continue
        packets += 1
        carried, computed = raw(frame[BTH])[-4:], frame[BTH].compute_icrc(None)
        if carried != computed:
            wrong += 1
            print(f"{path}: packet {number}: ICRC {carried.hex()}, scapy computes {computed.hex()}: {frame.summary()}")
print(f"{packets} packets, {wrong} wrong")
sys.exit(1 if wrong else 0)
