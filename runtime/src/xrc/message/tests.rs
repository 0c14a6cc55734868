use super::*;

const SRQ: Qpn = Qpn::new(0x1234);
const QPN: Qpn = Qpn::new(0x5678);
const NOW: Instant = Instant::from_nanos(9);

fn bytes(parts: &Parts<'_>) -> Vec<u8> {
    [parts.head(), parts.payload].concat()
}

fn cqe() -> Cqe {
    Cqe {
        wr_id: 0,
        status: WcStatus::LocalLengthError,
        opcode: WcOpcode::RecvRdmaWithImm,
        qpn: QPN,
        byte_len: 77,
        imm: Some(ImmDt([1, 2, 3, 4])),
        invalidated: None,
        at: NOW,
        src_qp: SRQ,
        solicited: true,
        grh: None,
        slid: Lid::NONE,
        frame: FrameCompletion::default(),
        refusal: None,
    }
}

fn access(access: Access, length: u64, act: Act<'_>) -> Request<'_> {
    let range = Range { key: Key(7), access, va: u64::MAX, length };
    Request::Access { srq: SRQ, qpn: QPN, range, act }
}

fn requests(data: &[u8]) -> Vec<Request<'_>> {
    let wqe = Wqe(3);
    vec![
        Request::Join { interface: 1 },
        Request::Find { srq: SRQ },
        Request::Take { srq: SRQ },
        Request::Scatter { wqe, offset: 1 << 40, data },
        access(Access::REMOTE_WRITE, 1 << 30, Act::Look),
        access(Access::REMOTE_READ, 4096, Act::Read),
        access(Access::REMOTE_WRITE, data.len() as u64, Act::Write(data)),
        access(Access::REMOTE_WRITE, 8, Act::WriteWord([5; 8])),
        access(Access::REMOTE_ATOMIC, 8, Act::CompareSwap { compare: 1, swap: 2 }),
        access(Access::REMOTE_ATOMIC, 8, Act::FetchAdd(3)),
        access(Access::FLUSH_GLOBAL, 0, Act::Flush { persistent: false, whole: true }),
        Request::Invalidate { srq: SRQ, qpn: QPN, key: Key(8) },
        Request::Complete { wqe, cqe: cqe() },
        Request::Complete { wqe, cqe: Cqe { imm: None, invalidated: Some(RKey(6)), opcode: WcOpcode::Recv, ..cqe() } },
        Request::GiveBack { wqe },
    ]
}

#[test]
fn requests_and_answers_survive() {
    let data = [0xA5; MOST];
    for request in requests(&data) {
        let message = bytes(&request.emit());
        assert!(message.len() <= LENGTH);
        assert_eq!(Request::parse(&message, NOW), Some(request));
    }
    let refused = REFUSALS.map(Answer::Refused);
    let taken = Answer::Taken { wqe: Wqe(1), room: u32::MAX };
    for answer in
        [Answer::Done(u64::MAX), Answer::Data(&data), taken, Answer::Empty, Answer::NotThere].into_iter().chain(refused)
    {
        assert_eq!(Answer::parse(&bytes(&answer.emit())), Some(answer));
    }
}

#[test]
fn truncated_or_long_messages_are_refused() {
    for request in requests(&[]) {
        let message = bytes(&request.emit());
        for length in 0..message.len() {
            assert_ne!(Request::parse(&message[..length], NOW), Some(request), "{request:?} of {length} bytes");
        }
        let longer = [&message[..], &[0]].concat();
        assert_ne!(Request::parse(&longer, NOW), Some(request));
    }
    assert_eq!(Answer::parse(&[5, 7]), None);
    assert_eq!(Answer::parse(&[]), None);
}

/// Checks that an access needs its own right: REMOTE_READ does not allow a write.
#[test]
fn an_act_needs_its_right() {
    let data = [1; 8];
    for (rights, length, act) in [
        (Access::REMOTE_READ, 8, Act::Write(&data)),
        (Access::REMOTE_WRITE, 8, Act::Read),
        (Access::REMOTE_WRITE, 8, Act::FetchAdd(1)),
        (Access::NONE, 8, Act::Flush { persistent: true, whole: false }),
        (Access::REMOTE_WRITE, 9, Act::Write(&data)),
        (Access::REMOTE_READ, 4097, Act::Read),
        (Access::REMOTE_ATOMIC, 16, Act::FetchAdd(1)),
    ] {
        assert_eq!(Request::parse(&bytes(&access(rights, length, act).emit()), NOW), None, "{act:?}");
    }
}
