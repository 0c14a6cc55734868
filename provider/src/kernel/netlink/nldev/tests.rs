//! Requests of `rdma` and libibverbs, and others.

use super::*;
use crate::kernel::netlink::message::{self, message};

/// Two devices, and two processes that have the first.
struct World {
    qps: usize,
}

const REQUEST: u16 = 1;
const ACK: u16 = 4;
const DUMP: u16 = 0x300;

impl Devices for World {
    fn all(&self) -> Vec<Device> {
        let port = Port { state: 4, phys_state: 5, netdev: (1, "lo".to_owned()), ..Port::default() };
        let one = Device { name: "urxe0".to_owned(), guid: 0x0200_00ff_fe00_0000, port, ..Device::default() };
        vec![one.clone(), Device { index: 1, name: "urxe1".to_owned(), ..one }]
    }

    fn reports(&self, device: &Device) -> Vec<Told> {
        if device.index != 0 {
            return Vec::new();
        }
        let qp = |number| format!(r#"{{"lqpn":{number},"rqpn":7,"type":2,"state":3,"sq_psn":9,"pdn":1}}"#);
        let qps: Vec<_> = (0..self.qps).map(qp).collect();
        let report = format!(r#"{{"resources":{{"pd":[{{"pdn":1,"users":2}}],"qp":[{}]}}}}"#, qps.join(","));
        let other = r#"{"resources":{"qp":[{"lqpn":99999,"state":6,"type":4,"sq_psn":0,"path_mig_state":4000},{"lqpn":88888,"state":6}],"cq":[]}}"#.to_owned();
        vec![Told { pid: 17, report }, Told { pid: 18, report: other }]
    }

    fn counters(&self, _device: &Device) -> Vec<(&'static str, u64)> {
        let all = urxe_status::sysfs::files().filter(urxe_status::sysfs::File::is_hardware);
        (1..).zip(all).map(|(value, file)| (file.name, value)).collect()
    }

    fn chardev(&self, kind: &str, device: Option<&Device>) -> Option<CharDev> {
        let name = format!("{kind}{}", device?.index);
        (kind == "uverbs").then_some(CharDev { name, abi: 1, number: libc::makedev(231, 0x1c0) })
    }

    fn is_administrator(&self) -> bool {
        self.qps > 0
    }
}

fn kind(command: u32) -> u16 {
    u16::try_from(n::RDMA_NL_NLDEV << 10 | command).unwrap()
}

fn ask_in(world: &World, command: u32, flags: u16, write: impl FnOnce(&mut Writer)) -> Vec<Vec<u8>> {
    let mut attributes = Writer::default();
    write(&mut attributes);
    let bytes = message(kind(command), REQUEST | flags, &attributes);
    message::requests(&bytes).flat_map(|request| answer(request, 4711, world)).collect()
}

fn ask(command: u32, flags: u16, write: impl FnOnce(&mut Writer)) -> Vec<Vec<u8>> {
    ask_in(&World { qps: 3 }, command, flags, write)
}

/// The errno of the only message.
fn refusal(answers: &[Vec<u8>]) -> i32 {
    assert_eq!(answers.len(), 1, "{answers:?}");
    let (kind, _, request) = message::read(&answers[0]);
    assert_eq!((kind, request.sequence), (2, 7));
    request.error()
}

fn device(writer: &mut Writer) {
    writer.put_u32(n::RDMA_NLDEV_ATTR_DEV_INDEX, 0);
}

#[test]
fn libibverbs_finds_devices_and_their_files() {
    let answers = ask(n::RDMA_NLDEV_CMD_GET, DUMP, |_| ());
    assert_eq!(answers.len(), 3, "two, and the end");
    let (_, flags, first) = message::read(&answers[0]);
    assert_eq!((first.kind, flags, first.sequence), (kind(n::RDMA_NLDEV_CMD_GET), 2, 7));
    let first = first.attributes().unwrap();
    assert_eq!(first.text(n::RDMA_NLDEV_ATTR_DEV_NAME), Ok(Some("urxe0")));
    assert_eq!(first.u32(n::RDMA_NLDEV_ATTR_PORT_INDEX), Ok(Some(1)));
    assert_eq!(first.all(n::RDMA_NLDEV_ATTR_NODE_GUID), [0x0200_00ff_fe00_0000_u64.to_ne_bytes()]);
    assert_eq!(message::read(&answers[2]).0, 3, "NLMSG_DONE");

    let chardev = |kind: &'static str, device: Option<u32>| {
        ask(n::RDMA_NLDEV_CMD_GET_CHARDEV, 0, |writer| {
            device.into_iter().for_each(|device| writer.put_u32(n::RDMA_NLDEV_ATTR_DEV_INDEX, device));
            writer.put_text(n::RDMA_NLDEV_ATTR_CHARDEV_TYPE, kind);
        })
    };
    let answers = chardev("uverbs", Some(1));
    assert_eq!(answers.len(), 1, "no acknowledgement that nobody wants");
    let found = message::read(&answers[0]).2.attributes().unwrap();
    assert_eq!(found.text(n::RDMA_NLDEV_ATTR_CHARDEV_NAME), Ok(Some("uverbs1")));
    // The minor number's lower eight bits, the major number's twelve, the rest of the minor number.
    assert_eq!(found.all(n::RDMA_NLDEV_ATTR_CHARDEV), [0x0010_e7c0_u64.to_ne_bytes()]);
    assert_eq!(refusal(&chardev("umad", Some(0))), libc::EOPNOTSUPP);
    assert_eq!(refusal(&chardev("uverbs", Some(2))), libc::EINVAL, "no such device");
}

#[test]
fn ports_by_number_and_all() {
    let one = |port: u32| {
        ask(n::RDMA_NLDEV_CMD_PORT_GET, ACK, |writer| {
            device(writer);
            writer.put_u32(n::RDMA_NLDEV_ATTR_PORT_INDEX, port);
        })
    };
    let answers = one(1);
    let port = message::read(&answers[0]).2.attributes().unwrap();
    assert_eq!(port.text(n::RDMA_NLDEV_ATTR_NDEV_NAME), Ok(Some("lo")));
    assert_eq!(port.all(n::RDMA_NLDEV_ATTR_PORT_STATE), [[4]]);
    assert_eq!(refusal(&answers[1..]), 0, "as it was wanted");
    assert_eq!(refusal(&one(2)), libc::EINVAL);
    assert_eq!(ask(n::RDMA_NLDEV_CMD_PORT_GET, DUMP, device).len(), 2);
    assert_eq!(refusal(&ask(n::RDMA_NLDEV_CMD_PORT_GET, 0, device)), libc::EINVAL);
}

/// The queue pairs in an answer: number and process.
fn queue_pairs(answers: &[Vec<u8>]) -> Vec<(u32, u32)> {
    let mut found = Vec::new();
    for answer in answers {
        let (kind, _, request) = message::read(answer);
        assert!(answer.len() <= 4096 - 320, "a page of the kernel's: {}", answer.len());
        if kind == 3 {
            continue;
        }
        let tables = request.attributes().unwrap().all(n::RDMA_NLDEV_ATTR_RES_QP).concat();
        for entry in Attributes::inside(&tables).all(n::RDMA_NLDEV_ATTR_RES_QP_ENTRY) {
            let entry = Attributes::inside(entry);
            let number = |attribute| entry.u32(attribute).unwrap().unwrap();
            found.push((number(n::RDMA_NLDEV_ATTR_RES_LQPN), number(n::RDMA_NLDEV_ATTR_RES_PID)));
        }
    }
    found
}

#[test]
fn queue_pairs_of_all_processes() {
    let all = ask(n::RDMA_NLDEV_CMD_RES_QP_GET, DUMP, device);
    assert_eq!(queue_pairs(&all), [(0, 17), (1, 17), (2, 17), (99_999, 18)]);
    // Many are told in many messages.
    let many = ask_in(&World { qps: 5000 }, n::RDMA_NLDEV_CMD_RES_QP_GET, DUMP, device);
    assert!(many.len() > 50 && queue_pairs(&many).len() == 5001);
    let one = |number: u32| {
        ask(n::RDMA_NLDEV_CMD_RES_QP_GET, 0, |writer| {
            device(writer);
            writer.put_u32(n::RDMA_NLDEV_ATTR_RES_LQPN, number);
        })
    };
    let found = one(2);
    let found = message::read(&found[0]).2.attributes().unwrap();
    assert_eq!(found.u32(n::RDMA_NLDEV_ATTR_RES_PID), Ok(Some(17)));
    assert_eq!(found.all(n::RDMA_NLDEV_ATTR_RES_STATE), [[3]]);
    // What another process says and does not fit is not told.
    let other = one(99_999);
    assert!(message::read(&other[0]).2.attributes().unwrap().all(n::RDMA_NLDEV_ATTR_RES_PATH_MIG_STATE).is_empty());
    assert_eq!(refusal(&one(88_888)), libc::ENOENT, "`rdma` would fail for all");
    assert_eq!(refusal(&one(3)), libc::ENOENT);
    assert_eq!(refusal(&ask(n::RDMA_NLDEV_CMD_RES_QP_GET, 0, device)), libc::EINVAL, "which?");
    assert_eq!(refusal(&ask(n::RDMA_NLDEV_CMD_RES_QP_GET, DUMP, |_| ())), libc::EINVAL, "of which device?");
}

#[test]
fn a_summary_counts_each_kind() {
    let answers = ask(n::RDMA_NLDEV_CMD_RES_GET, DUMP, |_| ());
    let counts = |answer: &[u8]| -> Vec<(String, u64)> {
        let table = message::read(answer).2.attributes().unwrap().all(n::RDMA_NLDEV_ATTR_RES_SUMMARY).concat();
        let entries = Attributes::inside(&table).all(n::RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY);
        let entry = |entry| {
            let entry = Attributes::inside(entry);
            let name = entry.text(n::RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_NAME).unwrap().unwrap().to_owned();
            let count = entry.all(n::RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_CURR)[0];
            (name, u64::from_ne_bytes(count.try_into().unwrap()))
        };
        entries.into_iter().map(entry).collect()
    };
    let expected = [("pd", 1), ("cq", 0), ("qp", 4), ("cm_id", 0), ("mr", 0), ("ctx", 0), ("srq", 0)];
    assert_eq!(counts(&answers[0]), expected.map(|(name, count)| (name.to_owned(), count)));
    assert!(counts(&answers[1]).iter().all(|(_, count)| *count == 0), "nobody has the second");
}

#[test]
fn counters_of_a_port() {
    let port = |writer: &mut Writer| {
        device(writer);
        writer.put_u32(n::RDMA_NLDEV_ATTR_PORT_INDEX, 1);
    };
    let answers = ask(n::RDMA_NLDEV_CMD_STAT_GET, 0, port);
    assert!(answers.len() == 1 && answers[0].len() <= 4096, "readers have room for a page");
    let table = message::read(&answers[0]).2.attributes().unwrap().all(n::RDMA_NLDEV_ATTR_STAT_HWCOUNTERS).concat();
    let entries = Attributes::inside(&table).all(n::RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY);
    let first = Attributes::inside(entries[0]);
    assert_eq!(first.text(n::RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_NAME), Ok(Some("sent_pkts")));
    assert_eq!(first.all(n::RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_VALUE), [1_u64.to_ne_bytes()]);
    assert_eq!(ask(n::RDMA_NLDEV_CMD_STAT_GET_STATUS, 0, port).len(), 1);
    assert_eq!(refusal(&ask(n::RDMA_NLDEV_CMD_STAT_GET, 0, device)), libc::EINVAL);
    // No queue pair is bound to a counter.
    let bound = ask(n::RDMA_NLDEV_CMD_STAT_GET, DUMP, |writer| writer.put_u32(n::RDMA_NLDEV_ATTR_STAT_RES, 0));
    assert!(bound.len() == 1 && message::read(&bound[0]).0 == 3);
}

#[test]
fn unsupported_commands_are_refused() {
    for command in [n::RDMA_NLDEV_CMD_SET, n::RDMA_NLDEV_CMD_NEWLINK, n::RDMA_NLDEV_CMD_SYS_SET] {
        assert_eq!(refusal(&ask(command, ACK, device)), libc::EOPNOTSUPP, "{command}");
        assert_eq!(refusal(&ask_in(&World { qps: 0 }, command, 0, device)), libc::EPERM, "{command}");
    }
    assert_eq!(refusal(&ask(n::RDMA_NLDEV_CMD_RES_QP_GET_RAW, DUMP, device)), libc::EOPNOTSUPP);
    for command in [0, 8, n::RDMA_NLDEV_CMD_STAT_GET_STATUS + 1, 0x3ff] {
        assert_eq!(refusal(&ask(command, 0, device)), libc::EINVAL, "{command}");
    }
    let ask = |kind, flags| {
        let bytes = message(kind, flags, &Writer::default());
        message::requests(&bytes).flat_map(|request| answer(request, 1, &World { qps: 1 })).collect::<Vec<_>>()
    };
    // Another client of the kernel's; no request at all; netlink's own.
    assert_eq!(refusal(&ask(u16::try_from(n::RDMA_NL_LS << 10).unwrap(), REQUEST)), libc::EINVAL);
    assert!(ask(kind(n::RDMA_NLDEV_CMD_GET), DUMP).is_empty());
    assert_eq!((ask(3, REQUEST).len(), refusal(&ask(3, REQUEST | ACK))), (0, 0));
}

#[test]
fn any_attributes_at_all() {
    let mut rng = urxe_engine::rng::Rng::new(21);
    for _ in 0..20_000 {
        let command = u32::try_from(rng.next_u64() % 30).unwrap();
        let mut attributes = Writer::default();
        for _ in 0..rng.next_u64() % 6 {
            let value = rng.next_u64().to_ne_bytes();
            let length = usize::try_from(rng.next_u64() % 9).unwrap();
            let number = u32::try_from(rng.next_u64() % 100).unwrap();
            attributes.put(number, if rng.next_u64().is_multiple_of(2) { &value[..length] } else { &[0, 0, 0, 0] });
        }
        let flags = [REQUEST, REQUEST | ACK, REQUEST | DUMP][usize::try_from(rng.next_u64() % 3).unwrap()];
        let bytes = message(kind(command), flags, &attributes);
        for request in message::requests(&bytes) {
            let answers = answer(request, 1, &World { qps: 2 });
            assert!(flags == REQUEST || !answers.is_empty(), "somebody would wait for ever: {command}");
        }
    }
}
