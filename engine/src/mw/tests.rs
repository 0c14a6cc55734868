use super::*;
use crate::mr::Accessor;

const PD: Pd = Pd(1);
const QPN: Qpn = Qpn::new(0x11);
const OTHER_QPN: Qpn = Qpn::new(0x12);

struct Bench {
    table: RegionTable,
    region: Key,
}

fn bench() -> Bench {
    let mut table = RegionTable::new(16, 5);
    let access = Access::LOCAL_WRITE | Access::MW_BIND;
    let region = table.insert(|key| region(key, access)).unwrap();
    Bench { table, region }
}

fn region(key: Key, access: Access) -> Region {
    Region { key, pd: PD, access, iova: 0x1000, length: 0x100, host: 0x9000, kind: RegionKind::Memory }
}

fn next(key: Key) -> Key {
    Key((key.0 & !0xff) | (key.0.wrapping_add(1) & 0xff))
}

impl Bench {
    fn window(&mut self, kind: WindowType) -> Key {
        self.table.insert_window(PD, kind).unwrap()
    }

    fn bind(&self, window: Key) -> Bind {
        Bind {
            window,
            new_key: next(window),
            region: self.region,
            access: Access::REMOTE_WRITE,
            addr: 0x1010,
            length: 0x20,
        }
    }
}

#[test]
fn a_window_shows_its_part_of_the_region_to_peers_only() {
    let mut bench = bench();
    let window = bench.window(WindowType::One);
    assert_eq!(bench.table.get(window), None, "not bound");
    let bind = bench.bind(window);
    assert_eq!(bench.table.bind(PD, QPN, &bind), Ok(None));
    assert_eq!(bench.table.get(window), None, "the old key");
    let visible = bench.table.get(bind.new_key).unwrap();
    let check = |by, access, va, length| visible.check(by, access, va, length);
    let peer = Accessor::Remote(PD, QPN);
    assert_eq!(check(peer, Access::REMOTE_WRITE, 0x1010, 0x20), Ok(0x9010));
    assert_eq!(check(peer, Access::REMOTE_WRITE, 0x100f, 1), Err(Refusal::OutOfBounds));
    assert_eq!(check(peer, Access::REMOTE_WRITE, 0x1010, 0x21), Err(Refusal::OutOfBounds));
    assert_eq!(check(peer, Access::REMOTE_READ, 0x1010, 1), Err(Refusal::Access));
    assert_eq!(check(Accessor::Local(PD), Access::NONE, 0x1010, 1), Err(Refusal::NoSuchKey));
    assert_eq!(check(Accessor::Remote(Pd(2), QPN), Access::REMOTE_WRITE, 0x1010, 1), Err(Refusal::OtherPd));
    assert_eq!(check(Accessor::Remote(PD, OTHER_QPN), Access::REMOTE_WRITE, 0x1010, 1), Ok(0x9010));
}

//= spec/memory.md#mem-005
//= type=test
//# A type 2 window MUST serve the queue pair that it is bound to, and no other.
#[test]
fn a_type_2_window_serves_one_queue_pair() {
    let mut bench = bench();
    let window = bench.window(WindowType::Two);
    let bind = Bind { access: Access::REMOTE_READ | Access::ZERO_BASED, ..bench.bind(window) };
    bench.table.bind(PD, QPN, &bind).unwrap();
    let visible = bench.table.get(bind.new_key).unwrap();
    assert_eq!(visible.check(Accessor::Remote(PD, QPN), Access::REMOTE_READ, 0, 0x20), Ok(0x9010));
    assert_eq!(visible.check(Accessor::Remote(PD, OTHER_QPN), Access::REMOTE_READ, 0, 1), Err(Refusal::OtherPd));
}

//= spec/memory.md#mem-004
//= type=test
//# A window MUST be bound only within the protection domain of window, region and queue pair.
#[test]
fn rules_of_binding() {
    let mut bench = bench();
    let one = bench.window(WindowType::One);
    let two = bench.window(WindowType::Two);
    let read_only = bench.table.insert(|key| region(key, Access::MW_BIND)).unwrap();
    let closed = bench.table.insert(|key| region(key, Access::LOCAL_WRITE)).unwrap();
    let zero = Access::MW_BIND | Access::LOCAL_WRITE | Access::ZERO_BASED;
    let zero_based = bench.table.insert(|key| region(key, zero)).unwrap();
    let region = bench.region;
    for (change, expected) in [
        ((|bind| bind.window = Key(0xdead00)) as fn(&mut Bind), BindError::NoSuchWindow),
        (|bind| bind.new_key = Key(bind.new_key.0 ^ 0x100), BindError::NewKey),
        (|bind| bind.region = Key(0xdead00), BindError::NoSuchRegion),
        (|bind| bind.region = bind.window, BindError::NoSuchRegion),
        (|bind| bind.addr = 0xfff, BindError::OutOfBounds),
        (|bind| bind.length = 0xf1, BindError::OutOfBounds),
        (|bind| bind.length = u64::MAX, BindError::OutOfBounds),
    ] {
        for window in [one, two] {
            let mut bind = bench.bind(window);
            change(&mut bind);
            assert_eq!(bench.table.bind(PD, QPN, &bind), Err(expected), "{bind:?}");
        }
    }
    for (key, expected) in
        [(read_only, BindError::Access), (closed, BindError::Access), (zero_based, BindError::Access)]
    {
        let bind = Bind { region: key, ..bench.bind(one) };
        assert_eq!(bench.table.bind(PD, QPN, &bind), Err(expected));
    }
    assert_eq!(bench.table.bind(Pd(2), QPN, &bench.bind(one)), Err(BindError::OtherPd));
    let zero_based = Bind { access: Access::REMOTE_READ | Access::ZERO_BASED, ..bench.bind(one) };
    assert_eq!(bench.table.bind(PD, QPN, &zero_based), Err(BindError::Access));
    let empty = Bind { length: 0, ..bench.bind(two) };
    assert_eq!(bench.table.bind(PD, QPN, &empty), Err(BindError::OutOfBounds));
    assert_eq!(bench.table.remove(region).map(|region| region.key), Ok(region), "nothing was bound");
}

#[test]
fn type_1_is_bound_again_at_will_and_closed_by_binding_nothing() {
    let mut bench = bench();
    let window = bench.window(WindowType::One);
    let first = bench.bind(window);
    bench.table.bind(PD, QPN, &first).unwrap();
    assert_eq!(bench.table.remove(bench.region).unwrap_err(), TableError::Bound);
    assert_eq!(bench.table.invalidate(PD, QPN, first.new_key).unwrap_err(), Refusal::Access);
    let second = Bind { addr: 0x1000, length: 1, ..bench.bind(first.new_key) };
    let before = bench.table.bind(PD, QPN, &second).unwrap().unwrap();
    assert_eq!(before.length, 0x20);
    let nothing = Bind { length: 0, ..bench.bind(second.new_key) };
    bench.table.bind(PD, QPN, &nothing).unwrap();
    assert_eq!(bench.table.get(nothing.new_key), None);
    assert!(bench.table.remove(bench.region).is_ok());
}

#[test]
fn type_2_is_closed_by_invalidation() {
    let mut bench = bench();
    let window = bench.window(WindowType::Two);
    let bind = bench.bind(window);
    assert_eq!(bench.table.invalidate(PD, QPN, window).unwrap_err(), Refusal::NoSuchKey);
    bench.table.bind(PD, QPN, &bind).unwrap();
    let again = bench.bind(bind.new_key);
    assert_eq!(bench.table.bind(PD, QPN, &again), Err(BindError::Bound));
    assert_eq!(bench.table.invalidate(PD, OTHER_QPN, bind.new_key).unwrap_err(), Refusal::OtherPd);
    assert_eq!(bench.table.invalidate(PD, QPN, bench.region).unwrap_err(), Refusal::Access);
    assert!(bench.table.invalidate(PD, QPN, bind.new_key).is_ok());
    assert_eq!(bench.table.get(bind.new_key), None);
    assert!(bench.table.bind(PD, QPN, &again).is_ok());
    // Freed by the key that the application knows, which need not be the present one.
    let freed = bench.table.remove_window(window).unwrap().unwrap();
    assert_eq!(freed.key, again.new_key);
    assert_eq!(bench.table.get(again.new_key), None);
    assert!(bench.table.remove(bench.region).is_ok());
}

#[test]
fn a_type_1_window_is_known_by_any_key_of_its_own() {
    let mut bench = bench();
    let window = bench.window(WindowType::One);
    // The application was told the next key, and the one after, though neither bind was carried out.
    let bind = bench.bind(next(next(window)));
    assert_eq!(bench.table.bind(PD, QPN, &bind), Ok(None));
    assert!(bench.table.get(bind.new_key).is_some() && bench.table.get(window).is_none());
    let window = bench.window(WindowType::Two);
    assert_eq!(bench.table.bind(PD, QPN, &bench.bind(next(window))), Err(BindError::NoSuchWindow));
}

#[test]
fn a_bind_taken_back() {
    let mut bench = bench();
    let window = bench.window(WindowType::Two);
    let bind = bench.bind(window);
    assert!(bench.table.undo_bind(QPN, &bind).is_none(), "it is not bound");
    bench.table.bind(PD, QPN, &bind).unwrap();
    assert!(bench.table.undo_bind(OTHER_QPN, &bind).is_none(), "that is another queue pair's");
    assert!(bench.table.undo_bind(QPN, &bind).is_some());
    assert_eq!((bench.table.get(window), bench.table.get(bind.new_key)), (None, None));
    // It has the key of before, also when more than one bind is taken back, the last first.
    let again = bench.bind(bind.new_key);
    bench.table.bind(PD, QPN, &bind).unwrap();
    bench.table.invalidate(PD, QPN, bind.new_key).unwrap();
    bench.table.bind(PD, QPN, &again).unwrap();
    assert!(bench.table.undo_bind(QPN, &bind).is_none());
    assert!(bench.table.undo_bind(QPN, &again).is_some());
    assert!(bench.table.undo_bind(QPN, &bind).is_none(), "invalidated since");
    assert_eq!(bench.table.bind(PD, QPN, &bind), Ok(None));
    // Of type 1, what was shown before is not shown again.
    let window = bench.window(WindowType::One);
    let bind = bench.bind(window);
    bench.table.bind(PD, QPN, &bind).unwrap();
    let again = bench.bind(bind.new_key);
    bench.table.bind(PD, QPN, &again).unwrap();
    assert!(bench.table.undo_bind(QPN, &again).is_some());
    assert!([window, bind.new_key, again.new_key].iter().all(|key| bench.table.get(*key).is_none()));
}
