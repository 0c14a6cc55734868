//! Memory windows over a bad network: bound, told, written through, invalidated by the peer, again and again.

use std::time::Duration;

use urxe_engine::{
    Access, Bind, Cqe, Data, Key, Recipient, RecvWr, Remote, SendFlags, SendOp, SendWr, Sge, SgeList, WcOpcode,
    WcStatus, WindowType,
};
use urxe_sim::memory::{Buffer, DEFAULT_PD};
use urxe_sim::rule::{Chance, Delays, Drops, Duplicates};
use urxe_sim::{Connection, Fabric, NodeConfig, NodeId};
use urxe_wire::{Qpn, RKey};

const ROUNDS: u8 = 60;
const LENGTH: u32 = 3000;

struct End {
    node: NodeId,
    qp: Qpn,
    buffer: Buffer,
}

impl End {
    fn post(&self, fabric: &mut Fabric, wr_id: u64, op: SendOp, data: Data) {
        let flags = SendFlags { signaled: true, ..SendFlags::default() };
        let wr = SendWr { wr_id, op, data, flags, to: Recipient::Peer };
        fabric.post_send(self.node, self.qp, wr).unwrap();
    }

    fn recv(&self, fabric: &mut Fabric, wr_id: u64) {
        let buffers = SgeList::new(&[Sge { addr: self.buffer.addr, length: 4, l_key: self.buffer.key.0 }]);
        fabric.post_recv(self.node, self.qp, RecvWr { wr_id, buffers }).unwrap();
    }

    fn polled_recv(&self, fabric: &mut Fabric) -> Option<Cqe> {
        let cq = fabric.node(self.node).recv_cq(self.qp);
        fabric.node_mut(self.node).poll(cq)
    }

    fn polled_sends(&self, fabric: &mut Fabric) -> Vec<(u64, WcOpcode, WcStatus)> {
        let cq = fabric.node(self.node).send_cq(self.qp);
        let mut node = std::iter::from_fn(|| fabric.node_mut(self.node).poll(cq));
        node.by_ref().map(|cqe| (cqe.wr_id, cqe.opcode, cqe.status)).collect()
    }
}

#[test]
fn bound_told_written_invalidated() {
    let mut fabric = Fabric::new();
    let (a, b) = (fabric.add_node(NodeConfig::default()), fabric.add_node(NodeConfig::default()));
    fabric.add_rule(Drops::new(1, Chance::percent(4)));
    fabric.add_rule(Duplicates::new(2, Chance::percent(4), Duration::from_micros(100)));
    fabric.add_rule(Delays::new(3, Chance::percent(4), Duration::from_micros(30)));
    let (qp_a, qp_b) = fabric.connect(a, b, &Connection::default());
    let access = Access::LOCAL_WRITE | Access::MW_BIND;
    let [client, server] = [(a, qp_a), (b, qp_b)].map(|(node, qp)| End {
        node,
        qp,
        buffer: fabric.node_mut(node).memory_mut().register_new(1 << 14, access),
    });
    let mut key = fabric.node_mut(b).memory_mut().alloc_window(DEFAULT_PD, WindowType::Two);
    // Behind what receives use.
    let target = server.buffer.addr + 4096;

    for round in 0..ROUNDS {
        let new_key = Key(key.0 & !0xFF | (key.0 & 0xFF).wrapping_add(1) & 0xFF);
        let bind = Bind {
            window: key,
            new_key,
            region: server.buffer.key,
            access: Access::REMOTE_WRITE,
            addr: target,
            length: u64::from(LENGTH),
        };
        key = new_key;
        client.recv(&mut fabric, u64::from(round));
        server.recv(&mut fabric, u64::from(round));
        server.post(&mut fabric, 0, SendOp::BindWindow(bind), Data::Gather(SgeList::new(&[])));
        server.post(&mut fabric, 1, SendOp::Send, Data::Inline(key.0.to_be_bytes().into()));
        fabric.run();

        let told = client.polled_recv(&mut fabric).unwrap();
        assert_eq!((told.status, told.byte_len), (WcStatus::Success, 4));
        let bytes = fabric.node(a).memory().peek(client.buffer.addr, 4);
        let r_key = RKey(u32::from_be_bytes(bytes.try_into().unwrap()));
        fabric.node_mut(a).memory_mut().poke(client.buffer.addr + 4096, &[round; LENGTH as usize]);
        let sge = Sge { addr: client.buffer.addr + 4096, length: LENGTH, l_key: client.buffer.key.0 };
        let write = SendOp::Write(Remote { addr: target, r_key });
        client.post(&mut fabric, 2, write, Data::Gather(SgeList::new(&[sge])));
        client.post(&mut fabric, 3, SendOp::SendWithInvalidate(r_key), Data::Inline([round].into()));
        fabric.run();

        let cqe = server.polled_recv(&mut fabric).unwrap();
        assert_eq!((cqe.status, cqe.byte_len, cqe.invalidated), (WcStatus::Success, 1, Some(r_key)));
        assert!(fabric.node(b).memory().holds(target, &[round; LENGTH as usize]), "round {round}");
        assert_eq!(
            server.polled_sends(&mut fabric),
            [(0, WcOpcode::BindMw, WcStatus::Success), (1, WcOpcode::Send, WcStatus::Success)]
        );
        assert_eq!(
            client.polled_sends(&mut fabric),
            [(2, WcOpcode::RdmaWrite, WcStatus::Success), (3, WcOpcode::Send, WcStatus::Success)]
        );
    }
    assert!(fabric.counts().dropped > 5 && fabric.counts().duplicated > 5, "{:?}", fabric.counts());

    // The key means nothing any more.
    fabric.clear_rules();
    let sge = Sge { addr: client.buffer.addr, length: 4, l_key: client.buffer.key.0 };
    let write = SendOp::Write(Remote { addr: target, r_key: RKey(key.0) });
    client.post(&mut fabric, 4, write, Data::Gather(SgeList::new(&[sge])));
    fabric.run();
    assert_eq!(client.polled_sends(&mut fabric), [(4, WcOpcode::RdmaWrite, WcStatus::RemoteAccessError)]);
    assert!(fabric.node(b).memory().holds(target, &[ROUNDS - 1; LENGTH as usize]));
    assert_eq!(fabric.node(b).memory().violations(), []);
}

/// Binding is done once, however often what is around it is sent again.
#[test]
fn local_operations_are_done_once_and_complete_in_order() {
    for seed in 0..200 {
        let mut fabric = Fabric::new();
        let (a, b) = (fabric.add_node(NodeConfig::default()), fabric.add_node(NodeConfig::default()));
        fabric.add_rule(Drops::new(seed, Chance::percent(10)));
        let selective_paths = [u8::try_from(seed % 2).unwrap(); 2];
        let (qp, _) = fabric.connect(a, b, &Connection { selective_paths, ..Connection::default() });
        let access = Access::LOCAL_WRITE | Access::MW_BIND;
        let end = End { node: a, qp, buffer: fabric.node_mut(a).memory_mut().register_new(4096, access) };
        let write = SendOp::Write(Remote { addr: 0, r_key: RKey(0) });
        let nothing = || Data::Gather(SgeList::new(&[]));
        let mut key = fabric.node_mut(a).memory_mut().alloc_window(DEFAULT_PD, WindowType::Two);
        let mut expected = Vec::new();
        for round in 0..8 {
            let new_key = Key(key.0 & !0xFF | (key.0 & 0xFF).wrapping_add(1) & 0xFF);
            let (region, addr) = (end.buffer.key, end.buffer.addr);
            let bind = Bind { window: key, new_key, region, access: Access::REMOTE_READ, addr, length: 8 };
            key = new_key;
            let ops = [
                (write, WcOpcode::RdmaWrite),
                (SendOp::BindWindow(bind), WcOpcode::BindMw),
                (write, WcOpcode::RdmaWrite),
                (SendOp::LocalInvalidate(key), WcOpcode::LocalInv),
                (write, WcOpcode::RdmaWrite),
            ];
            for ((op, opcode), wr_id) in ops.into_iter().zip(5 * round..) {
                end.post(&mut fabric, wr_id, op, nothing());
                expected.push((wr_id, opcode, WcStatus::Success));
            }
        }
        fabric.run();
        assert_eq!(end.polled_sends(&mut fabric), expected, "seed {seed}");
    }
}
