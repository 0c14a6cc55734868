//! Properties with parameters that shrink: what fails is reported as small as it can be made.

use proptest::prelude::*;
use urxe_engine::rng::Rng;
use urxe_sim::oracle::{ALL_VERBS, Plan, Profile, Scenario, Style, Verb};
use urxe_sim::rule::Chance;
use urxe_sim::{Connection, Fabric};
use urxe_wire::{Mtu, Psn};

const CAS: Verb = Verb::CompareSwap { compare: 0, swap: 0 };
const ADD: Verb = Verb::FetchAdd { add: 0 };

/// Mixtures of operations that get into each other's way.
const MIXTURES: [&[Verb]; 6] = [
    ALL_VERBS,
    &[Verb::Send],
    &[Verb::Read],
    &[CAS, ADD, Verb::Count],
    &[Verb::Read, Verb::Send, ADD],
    &[Verb::Write, Verb::Read],
];

prop_compose! {
    fn connections()(
        window in 1_u32..200,
        rd_atomic in 1_u8..16,
        depths in [1_u32..64, 1_u32..64],
        psns in [0_u32..1 << 24, 0_u32..1 << 24],
        timeout in 9_u8..14,
    ) -> Connection {
        let mut connection = Connection { window, psns: psns.map(Psn::new), ..Connection::default() };
        [connection.cap.max_send_wr, connection.cap.max_recv_wr] = depths;
        connection.attr.timeout = timeout;
        connection.attr.max_rd_atomic = rd_atomic;
        connection.attr.max_dest_rd_atomic = rd_atomic;
        connection
    }
}

prop_compose! {
    fn scenarios()(
        seed in any::<u64>(),
        ops in [0_usize..40, 0_usize..40],
        mtu in prop::sample::select(Mtu::ALL.as_slice()),
        mixture in prop::sample::select(MIXTURES.as_slice()),
        max_sge in 1_usize..5,
        connection in connections(),
        per_mille in [0_u32..40, 0_u32..40, 0_u32..40, 0_u32..40],
        send_room in 1_usize..64,
        receive_buffer in 8_usize..256,
        recv_batch in 1_usize..40,
    ) -> Scenario {
        let mut scenario = Scenario::new(seed, Profile::Mixed);
        let mut connection = connection;
        connection.attr.path_mtu = mtu;
        let mut rng = Rng::new(seed);
        let mut plan = |ops| {
            Plan::random(&mut rng, &Style { ops, mtu, max_sge, max_inline: 1024, verbs: mixture, poison: None })
        };
        scenario.plans = vec![ops.map(&mut plan)];
        scenario.connections = vec![connection];
        scenario.chances = per_mille.map(Chance::per_mille);
        scenario.node.send_room = send_room;
        scenario.node.receive_buffer = receive_buffer;
        scenario.recv_batch = recv_batch;
        scenario
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    //= spec/requester.md#req-008
    //= type=test
    //# Every signaled request MUST complete exactly once, whatever the network does.
    //= spec/requester.md#req-007
    //= type=test
    //# Requests MUST complete in the order in which they were posted.
    #[test]
    fn reliable_whatever_the_network_does(scenario in scenarios()) {
        let outcome = scenario.run(&mut Fabric::new());
        prop_assert!(outcome.is_ok(), "{}", outcome.unwrap_err().0);
    }
}
