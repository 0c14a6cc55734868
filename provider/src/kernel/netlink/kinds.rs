//! Objects as nldev shows them: which attribute each member of a report is, as data.

use std::collections::HashMap;

use urxe_ffi::nldev as n;
use urxe_status::resources::{Object, objects};

use super::message::Writer;

/// The most bytes of objects in a message: with the headers it fits into a page, which is what readers have room for.
pub(super) const MOST: usize = 3500;

/// A process' report of a device, and its number here.
#[derive(Debug, Clone)]
pub(super) struct Told {
    pub(super) pid: u32,
    pub(super) report: String,
}

/// Command for a kind of objects, and attributes of each.
#[derive(Debug)]
pub(super) struct Kind {
    /// Name of the list in a report, and in a summary.
    pub(super) name: &'static str,
    pub(super) command: u32,
    /// The list of all, and one in it.
    pub(super) table: u32,
    pub(super) entry: u32,
    /// The number that tells one from the others, among its members.
    pub(super) id: (&'static str, u32),
    members: &'static [(&'static str, u32, Width)],
    /// Members without which `rdma` of iproute2 fails, and shows none of the list.
    required: &'static [&'static str],
}

/// The type of an attribute.
#[derive(Debug, Clone, Copy)]
enum Width {
    U8,
    U32,
    U64,
}

use Width::{U8, U32, U64};

/// Kinds as `fill_entries` and `fill_res_*_entry` of the kernel's nldev.c, without what only administrators see (keys).
pub(super) const KINDS: [Kind; 7] = [
    Kind {
        name: "pd",
        command: n::RDMA_NLDEV_CMD_RES_PD_GET,
        table: n::RDMA_NLDEV_ATTR_RES_PD,
        entry: n::RDMA_NLDEV_ATTR_RES_PD_ENTRY,
        id: ("pdn", n::RDMA_NLDEV_ATTR_RES_PDN),
        members: &[
            ("users", n::RDMA_NLDEV_ATTR_RES_USECNT, U64),
            ("pdn", n::RDMA_NLDEV_ATTR_RES_PDN, U32),
            ("ctxn", n::RDMA_NLDEV_ATTR_RES_CTXN, U32),
        ],
        required: &["pdn", "users"],
    },
    Kind {
        name: "cq",
        command: n::RDMA_NLDEV_CMD_RES_CQ_GET,
        table: n::RDMA_NLDEV_ATTR_RES_CQ,
        entry: n::RDMA_NLDEV_ATTR_RES_CQ_ENTRY,
        id: ("cqn", n::RDMA_NLDEV_ATTR_RES_CQN),
        members: &[
            ("cqe", n::RDMA_NLDEV_ATTR_RES_CQE, U32),
            ("users", n::RDMA_NLDEV_ATTR_RES_USECNT, U64),
            ("cqn", n::RDMA_NLDEV_ATTR_RES_CQN, U32),
            ("ctxn", n::RDMA_NLDEV_ATTR_RES_CTXN, U32),
        ],
        required: &["cqn", "cqe", "users"],
    },
    Kind {
        name: "qp",
        command: n::RDMA_NLDEV_CMD_RES_QP_GET,
        table: n::RDMA_NLDEV_ATTR_RES_QP,
        entry: n::RDMA_NLDEV_ATTR_RES_QP_ENTRY,
        id: ("lqpn", n::RDMA_NLDEV_ATTR_RES_LQPN),
        members: &[
            ("lqpn", n::RDMA_NLDEV_ATTR_RES_LQPN, U32),
            ("rqpn", n::RDMA_NLDEV_ATTR_RES_RQPN, U32),
            ("rq_psn", n::RDMA_NLDEV_ATTR_RES_RQ_PSN, U32),
            ("sq_psn", n::RDMA_NLDEV_ATTR_RES_SQ_PSN, U32),
            ("path_mig_state", n::RDMA_NLDEV_ATTR_RES_PATH_MIG_STATE, U8),
            ("type", n::RDMA_NLDEV_ATTR_RES_TYPE, U8),
            ("state", n::RDMA_NLDEV_ATTR_RES_STATE, U8),
            ("pdn", n::RDMA_NLDEV_ATTR_RES_PDN, U32),
        ],
        required: &["lqpn", "sq_psn", "type", "state"],
    },
    Kind {
        name: "cm_id",
        command: n::RDMA_NLDEV_CMD_RES_CM_ID_GET,
        table: n::RDMA_NLDEV_ATTR_RES_CM_ID,
        entry: n::RDMA_NLDEV_ATTR_RES_CM_ID_ENTRY,
        id: ("cm_idn", n::RDMA_NLDEV_ATTR_RES_CM_IDN),
        members: &[
            ("type", n::RDMA_NLDEV_ATTR_RES_TYPE, U8),
            ("ps", n::RDMA_NLDEV_ATTR_RES_PS, U32),
            ("state", n::RDMA_NLDEV_ATTR_RES_STATE, U8),
            ("cm_idn", n::RDMA_NLDEV_ATTR_RES_CM_IDN, U32),
        ],
        required: &["cm_idn", "ps", "state"],
    },
    Kind {
        name: "mr",
        command: n::RDMA_NLDEV_CMD_RES_MR_GET,
        table: n::RDMA_NLDEV_ATTR_RES_MR,
        entry: n::RDMA_NLDEV_ATTR_RES_MR_ENTRY,
        id: ("mrn", n::RDMA_NLDEV_ATTR_RES_MRN),
        members: &[
            ("mrlen", n::RDMA_NLDEV_ATTR_RES_MRLEN, U64),
            ("mrn", n::RDMA_NLDEV_ATTR_RES_MRN, U32),
            ("pdn", n::RDMA_NLDEV_ATTR_RES_PDN, U32),
        ],
        required: &["mrn", "mrlen"],
    },
    Kind {
        name: "ctx",
        command: n::RDMA_NLDEV_CMD_RES_CTX_GET,
        table: n::RDMA_NLDEV_ATTR_RES_CTX,
        entry: n::RDMA_NLDEV_ATTR_RES_CTX_ENTRY,
        id: ("ctxn", n::RDMA_NLDEV_ATTR_RES_CTXN),
        members: &[("ctxn", n::RDMA_NLDEV_ATTR_RES_CTXN, U32)],
        required: &["ctxn"],
    },
    Kind {
        name: "srq",
        command: n::RDMA_NLDEV_CMD_RES_SRQ_GET,
        table: n::RDMA_NLDEV_ATTR_RES_SRQ,
        entry: n::RDMA_NLDEV_ATTR_RES_SRQ_ENTRY,
        id: ("srqn", n::RDMA_NLDEV_ATTR_RES_SRQN),
        members: &[
            ("srqn", n::RDMA_NLDEV_ATTR_RES_SRQN, U32),
            ("type", n::RDMA_NLDEV_ATTR_RES_TYPE, U8),
            ("pdn", n::RDMA_NLDEV_ATTR_RES_PDN, U32),
        ],
        required: &["srqn"],
    },
];

impl Kind {
    /// The kind that a command asks for.
    pub(super) fn of(command: u32) -> Option<&'static Self> {
        KINDS.iter().find(|kind| kind.command == command)
    }

    /// The objects of this kind that a process has told of: the number and the attributes of each.
    pub(super) fn of_process<'a>(&'a self, told: &'a Told) -> impl Iterator<Item = (u128, Writer)> + use<'a> {
        let mut receivers = if self.name == "srq" { receivers(&told.report) } else { HashMap::new() };
        objects(&told.report, self.name).filter_map(move |object| self.attributes(&object, told, &mut receivers))
    }

    /// The number and the attributes of an object. `None` if it lacks what every object has: another process tells of it, and
    /// `rdma` would show none of the other objects.
    fn attributes(&self, object: &Object<'_>, told: &Told, receivers: &mut Receivers) -> Option<(u128, Writer)> {
        let mut writer = Writer::default();
        if matches!(self.name, "qp" | "cm_id") {
            writer.put_u32(n::RDMA_NLDEV_ATTR_PORT_INDEX, 1);
        }
        for (name, number, width) in self.members {
            let fitting = object.get(name).and_then(|value| width.fit(value));
            match (fitting, width) {
                // Another process says it: what does not fit is left out.
                (None, _) if self.required.contains(name) => return None,
                (None, _) => {}
                (Some(value), U8) => writer.put_u8(*number, u8::try_from(value).ok()?),
                (Some(value), U32) => writer.put_u32(*number, u32::try_from(value).ok()?),
                (Some(value), U64) => writer.put_u64(*number, value),
            }
        }
        let ends = [
            (n::RDMA_NLDEV_ATTR_RES_SRC_ADDR, ["src_ipv4", "src_ipv6", "src_port"]),
            (n::RDMA_NLDEV_ATTR_RES_DST_ADDR, ["dst_ipv4", "dst_ipv6", "dst_port"]),
        ];
        for (number, [ipv4, ipv6, port]) in ends {
            if let Some(storage) = sockaddr(object.get(ipv4), object.get(ipv6), object.get(port)) {
                writer.put(number, &storage);
            }
        }
        let id = object.get(self.id.0)?;
        if self.name == "srq" {
            // An SRQ that is told of twice has its queue pairs once: a report's answer is not longer by a factor.
            writer.nest(n::RDMA_NLDEV_ATTR_RES_QP, &queue_pairs(receivers.remove(&id).unwrap_or_default()));
        }
        writer.put_u32(n::RDMA_NLDEV_ATTR_RES_PID, told.pid);
        Some((id, writer))
    }
}

impl Width {
    /// The value, if it is no larger than a number of this type.
    fn fit(self, value: u128) -> Option<u64> {
        let most = match self {
            U8 => u8::MAX.into(),
            U32 => u32::MAX.into(),
            U64 => u64::MAX,
        };
        u64::try_from(value).ok().filter(|value| *value <= most)
    }
}

/// Numbers of the queue pairs that receive from each SRQ.
type Receivers = HashMap<u128, Vec<u32>>;

/// Queue pair numbers are less: they have 24 bits. `rdma` counts through a range, and never ends at 2^32 - 1.
const QP_NUMBERS: u32 = 1 << 24;

/// Reads the list of queue pairs once for all SRQs of the report.
fn receivers(report: &str) -> Receivers {
    let mut receivers = Receivers::new();
    for qp in objects(report, "qp") {
        let number = qp.get("lqpn").and_then(|number| u32::try_from(number).ok()).filter(|number| *number < QP_NUMBERS);
        if let (Some(srqn), Some(number)) = (qp.get("srqn"), number) {
            receivers.entry(srqn).or_default().push(number);
        }
    }
    receivers
}

/// Queue pairs that receive from an SRQ, as ranges of numbers (`fill_res_srq_qps`): as many as there is room for.
fn queue_pairs(mut numbers: Vec<u32>) -> Writer {
    numbers.sort_unstable();
    numbers.dedup();
    let mut list = Writer::default();
    for range in numbers.chunk_by(|one, next| one.checked_add(1) == Some(*next)) {
        let (Some(first), Some(last)) = (range.first(), range.last()) else { continue };
        let mut entry = Writer::default();
        if first == last {
            entry.put_u32(n::RDMA_NLDEV_ATTR_RES_LQPN, *first);
        } else {
            entry.put_u32(n::RDMA_NLDEV_ATTR_MIN_RANGE, *first);
            entry.put_u32(n::RDMA_NLDEV_ATTR_MAX_RANGE, *last);
        }
        if list.len() + entry.len() > MOST / 2 {
            break;
        }
        list.nest(n::RDMA_NLDEV_ATTR_RES_QP_ENTRY, &entry);
    }
    list
}

/// A `struct __kernel_sockaddr_storage`.
fn sockaddr(ipv4: Option<u128>, ipv6: Option<u128>, port: Option<u128>) -> Option<[u8; 128]> {
    let port = u16::try_from(port?).ok()?.to_be_bytes();
    let (family, address) = match (ipv4, ipv6) {
        (Some(ipv4), _) => (libc::AF_INET, u32::try_from(ipv4).ok()?.to_be_bytes().to_vec()),
        // Behind the flow label.
        (None, Some(ipv6)) => (libc::AF_INET6, [&[0; 4][..], &ipv6.to_be_bytes()].concat()),
        (None, None) => return None,
    };
    let family = u16::try_from(family).ok()?.to_ne_bytes();
    let mut storage = [0; 128];
    for (to, from) in storage.iter_mut().zip(family.into_iter().chain(port).chain(address)) {
        *to = from;
    }
    Some(storage)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::netlink::message::{Attributes, message, read};

    /// Every member that devices tell has an attribute, and every attribute a member.
    #[test]
    fn one_set_of_names() {
        let told = urxe_status::resources::KINDS;
        assert_eq!(KINDS.map(|kind| kind.name), told.map(|kind| kind.name));
        for (kind, told) in KINDS.iter().zip(told) {
            let addresses = |name: &&str| name.starts_with("src_") || name.starts_with("dst_");
            // An SRQ lists its queue pairs.
            let elsewhere = |name: &&str| addresses(name) || (told.name == "qp" && *name == "srqn");
            let mut told: Vec<&str> = told.members.iter().copied().filter(|name| !elsewhere(name)).collect();
            let mut shown: Vec<&str> = kind.members.iter().map(|(name, ..)| *name).collect();
            told.sort_unstable();
            shown.sort_unstable();
            assert_eq!(told, shown, "{}", kind.name);
            assert!(shown.contains(&kind.id.0));
            assert!(kind.required.contains(&kind.id.0) && kind.required.iter().all(|name| shown.contains(name)));
        }
    }

    fn shown(kind: &str, lists: &str) -> Vec<(u128, Writer)> {
        let kind = KINDS.iter().find(|known| known.name == kind).unwrap();
        kind.of_process(&Told { pid: 1, report: format!("{{\"resources\":{{{lists}}}}}") }).collect()
    }

    #[test]
    fn an_object_that_rdma_cannot_show_is_left_out() {
        let numbers = |kind, lists| shown(kind, lists).iter().map(|(number, _)| *number).collect::<Vec<_>>();
        assert_eq!(
            numbers("pd", r#""pd":[{},{"users":1},{"pdn":2},{"pdn":3,"users":0},{"pdn":4294967296,"users":0}]"#),
            [3]
        );
        let qp = r#""qp":[{"lqpn":1,"type":2,"state":3},{"lqpn":2,"type":256,"state":3,"sq_psn":0},{"lqpn":3,"type":2,"state":3,"sq_psn":0}]"#;
        assert_eq!(numbers("qp", qp), [3]);
        for kind in KINDS {
            assert!(shown(kind.name, &format!("\"{}\":[{{}}]", kind.name)).is_empty(), "{}", kind.name);
        }
    }

    /// Ranges, as first and last number, of the queue pairs of each SRQ.
    fn ranges(lists: &str) -> Vec<Vec<(u32, u32)>> {
        let range = |entry: &[u8]| {
            let entry = Attributes::inside(entry);
            let number = |number| entry.u32(number).unwrap();
            let one = number(n::RDMA_NLDEV_ATTR_RES_LQPN).map(|one| (one, one));
            one.or_else(|| number(n::RDMA_NLDEV_ATTR_MIN_RANGE).zip(number(n::RDMA_NLDEV_ATTR_MAX_RANGE))).unwrap()
        };
        let of_srq = |(_, srq): (u128, Writer)| {
            let bytes = message(16, 0, &srq);
            let list = read(&bytes).2.attributes().unwrap().all(n::RDMA_NLDEV_ATTR_RES_QP).concat();
            Attributes::inside(&list).all(n::RDMA_NLDEV_ATTR_RES_QP_ENTRY).into_iter().map(range).collect()
        };
        shown("srq", lists).into_iter().map(of_srq).collect()
    }

    #[test]
    fn queue_pairs_of_an_srq() {
        let qp = |(qpn, srqn)| format!("{{\"lqpn\":{qpn},\"srqn\":{srqn}}}");
        let told = |qps: &[(u64, u64)]| {
            let qps: Vec<String> = qps.iter().copied().map(qp).collect();
            ranges(&format!(r#""qp":[{}],"srq":[{{"srqn":1}},{{"srqn":2}},{{"srqn":1}}]"#, qps.join(",")))
        };
        assert_eq!(
            told(&[(9, 1), (5, 1), (6, 2), (7, 1), (6, 1), (3, 3)]),
            [vec![(5, 7), (9, 9)], vec![(6, 6)], vec![]]
        );
        // Numbers that no queue pair has.
        assert_eq!(told(&[(u64::from(u32::MAX), 1), (u64::from(u32::MAX) - 1, 1), (1 << 24, 2)]), [[]; 3]);
    }

    /// The list of queue pairs is read once, not once for each SRQ: else this takes an hour.
    #[test]
    fn many_srqs_and_queue_pairs() {
        const COUNT: usize = 100_000;
        let lists = format!(
            "\"qp\":[{}],\"srq\":[{}]",
            vec![r#"{"lqpn":1,"srqn":2}"#; COUNT].join(","),
            vec![r#"{"srqn":2}"#; COUNT].join(",")
        );
        let found = ranges(&lists);
        assert_eq!((found.len(), &found[0][..], found[1].len()), (COUNT, &[(1, 1)][..], 0));
    }

    #[test]
    fn addresses_of_both_families() {
        let ipv4 = sockaddr(Some(0x7f00_0001), None, Some(7471)).unwrap();
        assert_eq!(&ipv4[..10], [&2_u16.to_ne_bytes()[..], &[0x1d, 0x2f, 127, 0, 0, 1, 0, 0]].concat());
        let ipv6 = sockaddr(None, Some(1), Some(7471)).unwrap();
        assert_eq!((&ipv6[..4], ipv6[23]), (&[&10_u16.to_ne_bytes()[..], &[0x1d, 0x2f]].concat()[..], 1));
        assert_eq!([sockaddr(None, None, Some(1)), sockaddr(Some(1), None, None)], [None; 2]);
        assert_eq!(sockaddr(Some(1), None, Some(1 << 16)), None);
    }
}
