//! Which queue pairs talk to each other.
//!
//! A packet of a connected service names only the queue pair that it goes to. Two flows belong together if one answers the
//! other: a response carries the PSN of a request that went the other way.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::IpAddr;

use urxe_wire::Psn;
use urxe_wire::opcode::Role;

use urxe_pcapng::Captured;

/// Packets to one queue pair from one address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Flow {
    from: IpAddr,
    to: IpAddr,
    qpn: u32,
}

impl Flow {
    fn of(packet: &Captured) -> Self {
        Self { from: packet.from, to: packet.to, qpn: packet.bth.dest_qp.get() }
    }
}

/// An exchange.
#[derive(Clone, Debug)]
pub(crate) struct Pair {
    /// From left to right: the requests that came first.
    there: Flow,
    /// From right to left, if anything went that way; `there` again for a queue pair that is connected with itself.
    back: Option<Flow>,
    /// Indices of its packets.
    pub(crate) packets: Vec<usize>,
    /// PSN of the first request, and of the first response, if the responder answers PSNs that were never sent.
    pub(crate) mismatch: Option<(Psn, Psn)>,
}

/// A queue pair at its address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct End {
    pub(crate) address: IpAddr,
    /// `None` if no packet names it.
    pub(crate) qpn: Option<u32>,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.qpn {
            Some(qpn) => write!(f, "{} QP {qpn:#x}", self.address),
            None => write!(f, "{} QP ?", self.address),
        }
    }
}

impl Pair {
    /// Whether the packet is of a queue pair with this number.
    pub(crate) fn names(&self, qpn: u32) -> bool {
        self.there.qpn == qpn || self.back.is_some_and(|back| back.qpn == qpn)
    }

    /// A number that names it.
    pub(crate) const fn qpn(&self) -> u32 {
        self.there.qpn
    }

    /// Whether the packet goes from left to right.
    pub(crate) fn is_there(&self, packet: &Captured) -> bool {
        if self.back == Some(self.there) {
            return packet.bth.opcode.info().role != Role::Response;
        }
        Flow::of(packet) == self.there
    }

    /// The end on the left.
    pub(crate) fn left(&self) -> End {
        End { address: self.there.from, qpn: self.back.map(|back| back.qpn) }
    }

    /// The end on the right.
    pub(crate) const fn right(&self) -> End {
        End { address: self.there.to, qpn: Some(self.there.qpn) }
    }
}

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} and {}", self.left(), self.right())
    }
}

/// All exchanges, the one with most packets first.
pub(crate) fn find(packets: &[Captured]) -> Vec<Pair> {
    let mut flows: HashMap<Flow, Vec<usize>> = HashMap::new();
    let mut requests: HashMap<u32, HashSet<Flow>> = HashMap::new();
    for (index, packet) in packets.iter().enumerate() {
        let flow = Flow::of(packet);
        flows.entry(flow).or_default().push(index);
        if packet.bth.opcode.info().role == Role::Request {
            requests.entry(packet.bth.psn.get()).or_default().insert(flow);
        }
    }
    // How often one flow answers another.
    let mut answers: HashMap<(Flow, Flow), usize> = HashMap::new();
    for packet in packets {
        let flow = Flow::of(packet);
        if let Some(src_qp) = packet.src_qp() {
            let asked = Flow { from: flow.to, to: flow.from, qpn: src_qp };
            if flows.contains_key(&asked) {
                *answers.entry((asked, flow)).or_default() += 1;
            }
            continue;
        }
        if packet.bth.opcode.info().role != Role::Response {
            continue;
        }
        for asked in requests.get(&packet.bth.psn.get()).into_iter().flatten() {
            if asked.from == flow.to && asked.to == flow.from && *asked != flow {
                *answers.entry((*asked, flow)).or_default() += 1;
            }
        }
    }
    let mut answers: Vec<_> = answers.into_iter().collect();
    let first = |flow: &Flow| flows.get(flow).and_then(|indices| indices.first()).copied().unwrap_or(usize::MAX);
    answers.sort_by_key(|((asked, answering), count)| (usize::MAX - count, first(asked), first(answering)));
    let (mut taken, mut pairs) = (HashSet::new(), Vec::<Pair>::new());
    for ((asked, answering), _) in &answers {
        if taken.contains(asked) || taken.contains(answering) {
            continue;
        }
        taken.extend([*asked, *answering]);
        let (there, back) = if first(asked) <= first(answering) { (asked, answering) } else { (answering, asked) };
        pairs.push(Pair { there: *there, back: Some(*back), packets: Vec::new(), mismatch: None });
    }
    pairs.extend(mismatched(packets, &mut taken));
    // A queue pair connected with itself: requests and responses go to one number.
    let answers_itself = |flow: &Flow| {
        let answer = |packet: &Captured| {
            let role = packet.bth.opcode.info().role;
            role == Role::Response && requests.get(&packet.bth.psn.get()).is_some_and(|asked| asked.contains(flow))
        };
        flow.from == flow.to && flows[flow].iter().any(|&index| answer(&packets[index]))
    };
    pairs.extend(flows.keys().filter(|flow| !taken.contains(*flow)).map(|flow| Pair {
        there: *flow,
        back: answers_itself(flow).then_some(*flow),
        packets: Vec::new(),
        mismatch: None,
    }));
    for pair in &mut pairs {
        let both = [Some(pair.there), pair.back.filter(|back| *back != pair.there)];
        let indices = both.into_iter().flatten().filter_map(|flow| flows.get(&flow)).flatten();
        pair.packets = indices.copied().collect();
        pair.packets.sort_unstable();
    }
    pairs.sort_by_key(|pair| (usize::MAX - pair.packets.len(), pair.packets.first().copied()));
    pairs
}

/// Pairs of the flows that are left: a responder whose rq_psn is not the requester's sq_psn answers PSNs that nobody sent. Such
/// answers follow the requests in time.
fn mismatched(packets: &[Captured], taken: &mut HashSet<Flow>) -> Vec<Pair> {
    let mut follows: HashMap<(Flow, Flow), usize> = HashMap::new();
    // The last request from one address to another.
    let mut last: HashMap<(IpAddr, IpAddr), Flow> = HashMap::new();
    // First PSN of requests, and of responses.
    let (mut requests, mut responses) = (HashMap::new(), HashMap::new());
    for packet in packets.iter().filter(|packet| packet.src_qp().is_none()) {
        let (flow, role) = (Flow::of(packet), packet.bth.opcode.info().role);
        if taken.contains(&flow) {
            continue;
        }
        match role {
            Role::Request => {
                last.insert((flow.from, flow.to), flow);
                requests.entry(flow).or_insert(packet.bth.psn);
            }
            Role::Response => {
                responses.entry(flow).or_insert(packet.bth.psn);
                if let Some(asked) = last.get(&(flow.to, flow.from)).filter(|asked| **asked != flow) {
                    *follows.entry((*asked, flow)).or_default() += 1;
                }
            }
            Role::Notification => {}
        }
    }
    let mut follows: Vec<_> = follows.into_iter().collect();
    follows.sort_by_key(|((asked, answering), count)| (usize::MAX - count, asked.qpn, answering.qpn));
    let mut pairs = Vec::new();
    for ((there, back), _) in follows {
        if taken.contains(&there) || taken.contains(&back) {
            continue;
        }
        taken.extend([there, back]);
        let mismatch = requests.get(&there).copied().zip(responses.get(&back).copied());
        pairs.push(Pair { there, back: Some(back), packets: Vec::new(), mismatch });
    }
    pairs
}
