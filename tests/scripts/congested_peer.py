"""A peer of a queue pair, made by scapy.contrib.roce: sends a WRITE that has met congestion, then CNPs.

    congested_peer.py OWN PEER QPN PSN ADDRESS KEY DATA

Prints the CNP that comes back: its traffic class, its bytes from the BTH to the ICRC, and the ICRC that scapy computes. Then sends
a CNP with a wrong ICRC, and a right one.
"""

import socket
import struct
import sys

from scapy.contrib.roce import BTH, cnp
from scapy.layers.inet import IP, UDP
from scapy.packet import Raw, raw

ROCE = 4791
own, peer = sys.argv[1:3]
qpn, psn, address, key = (int(word) for word in sys.argv[3:7])
data = sys.argv[7].encode()

answers = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
answers.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
answers.bind((own, ROCE))
answers.settimeout(120)
out = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)


def packet(content, tos=0):
    return raw(IP(src=own, dst=peer, tos=tos, id=0, flags="DF") / UDP(sport=0xC001, dport=ROCE) / content)


reth = struct.pack("!QII", address, key, len(data))
write = BTH(opcode=0x0A, ackreq=1, dqpn=qpn, psn=psn) / Raw(reth + data)
out.sendto(packet(write, tos=3), (peer, 0))
got = {}
while set(got) != {0x11, 0x81}:
    said, control, _, (_, port) = answers.recvmsg(2048, 64)
    tos = next(value[0] for level, kind, value in control if (level, kind) == (socket.IPPROTO_IP, socket.IP_TOS))
    got[said[0]] = (tos, said, port)
tos, said, port = got[0x81]
again = IP(raw(IP(src=peer, dst=own, id=0, flags="DF") / UDP(sport=port, dport=ROCE) / Raw(said)))
print(tos, said.hex(), again[BTH].compute_icrc(None).hex())

right = packet(cnp(qpn))
wrong = right[:-1] + bytes([right[-1] ^ 1])
# Without a UDP checksum nobody but the ICRC finds it out.
wrong = wrong[:26] + b"\0\0" + wrong[28:]
out.sendto(wrong, (peer, 0))
out.sendto(right, (peer, 0))
