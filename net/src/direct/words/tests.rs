use super::*;

const REGION: SharedRegion = SharedRegion { name: 7, rights: 3, iova: 0x1000, length: 64, at: 4096 };

/// The other end may be of another build: another layout has another number.
#[test]
fn the_layout_is_that_of_the_version() {
    use super::super::import::{qp_place, region_place};
    use super::super::mapping::{FILE, TABLE};
    use core::mem::offset_of;
    assert_eq!(super::super::VERSION, 2, "these are of version 2");
    let of_qp = [offset_of!(QpWords, version), offset_of!(QpWords, fields), offset_of!(QpWords, base)];
    let of_peer = [offset_of!(QpWords, busy), offset_of!(QpWords, taken), size_of::<QpWords>()];
    let of_region = [offset_of!(RegionWords, version), offset_of!(RegionWords, fields), size_of::<RegionWords>()];
    assert_eq!((of_qp, of_peer, of_region), ([0, 8, 40], [64, 72, 128], [0, 8, 64]));
    assert_eq!((BUSY, ENTRY, FILE, TABLE), (1 << 63, 1 << 32, 1 << 36, (4096 * 128 + 16384 * 64)));
    use super::super::receives::ReceiveWords;
    assert_eq!((size_of::<ReceiveWords>(), super::super::mapping::RECEIVES), (3072, 2 << 20));
    assert_eq!((qp_place(urxe_wire::Qpn::new(0x12_3456)), region_place(0x12_3456)), (0x456, Some(0x1233)));
}

#[test]
fn shown_words_are_read_back() {
    let (qp, region) = (QpWords::new(), RegionWords::new());
    assert_eq!((qp.read(), region.read()), (None, None));
    let shown = SharedQp { numbers: 1, rights: 2, addresses: 3, limits: 4 };
    let version = qp.show(&shown, 9).unwrap();
    region.show(&REGION);
    assert_eq!(qp.read(), Some((version, shown)));
    assert_eq!(region.read().unwrap().1, REGION);
    assert_eq!(qp.base(), 9);
    qp.hide();
    region.hide();
    assert_eq!((qp.read(), region.read()), (None, None));
    assert!(qp.show(&shown, 9).is_some_and(|again| again != version), "another time it is another");
}

//= spec/memory.md#mem-007
//= type=test
//# When deregistration returns, nobody MUST copy from or to the memory any more.
#[test]
fn hidden_regions_are_not_entered() {
    let (qp, region) = (QpWords::new(), RegionWords::new());
    let version = qp.show(&SharedQp::default(), 0).unwrap();
    region.show(&REGION);
    let (region_version, _) = region.read().unwrap();
    assert!(qp.enter(version, &region, region_version, 7));
    region.hide();
    let copy = qp.copying().unwrap();
    assert!(QpWords::is_at(copy, 7) && !QpWords::is_at(copy, 8));
    qp.leave();
    assert_eq!(qp.copying(), None);
    assert!(!qp.enter(version, &region, region_version, 7) && qp.copying().is_none());
    // Shown again it is another region.
    region.show(&REGION);
    assert!(!qp.enter(version, &region, region_version, 7));
    let (again, _) = region.read().unwrap();
    qp.hide();
    assert!(!qp.enter(version, &region, again, 7));
}

#[test]
fn taken_counts_are_read_and_reset() {
    let qp = QpWords::new();
    qp.show(&SharedQp::default(), 5).unwrap();
    let taken = Taken { psns: 3, messages: 2, bytes: 9000, receives: 1 };
    qp.set_taken(&taken);
    assert_eq!(qp.taken(), taken);
    qp.show(&SharedQp::default(), 8).unwrap();
    assert_eq!(qp.taken(), Taken::default());
}

#[test]
fn copies_of_one_region_are_told_apart() {
    let (qp, region) = (QpWords::new(), RegionWords::new());
    let version = qp.show(&SharedQp::default(), 0).unwrap();
    region.show(&REGION);
    let (region_version, _) = region.read().unwrap();
    let enter = || {
        assert!(qp.enter(version, &region, region_version, u32::MAX));
        qp.copying().filter(|copy| QpWords::is_at(*copy, u32::MAX)).unwrap()
    };
    let first = enter();
    qp.leave();
    let second = enter();
    assert_ne!(first, second);
    qp.abandon(first);
    assert_eq!(qp.copying(), Some(second), "it was another copy that ended");
    qp.abandon(second);
    assert_eq!(qp.copying(), None);
    // The number begins anew behind the last.
    qp.busy.store(ENTRIES, Ordering::Relaxed);
    assert_eq!(qp.copying(), None);
    enter();
    qp.leave();
    assert_eq!(qp.busy.load(Ordering::Relaxed), 0);
}

/// A peer that is stopped in the middle of a copy has the words to itself until it leaves, or ends.
#[test]
fn nothing_is_shown_to_another_while_a_peer_copies() {
    let (qp, region) = (QpWords::new(), RegionWords::new());
    region.show(&REGION);
    let (region_version, _) = region.read().unwrap();
    for is_killed in [false, true] {
        let version = qp.show(&SharedQp::default(), 0).unwrap();
        assert!(qp.enter(version, &region, region_version, 7));
        qp.hide();
        assert_eq!(qp.show(&SharedQp::default(), 0), None);
        assert_eq!(qp.read(), None);
        if is_killed {
            qp.abandon(qp.copying().unwrap());
        } else {
            qp.leave();
        }
    }
    // The peer of before comes too late to enter, and does not disturb the one that is in.
    let old = qp.show(&SharedQp::default(), 0).unwrap();
    let new = qp.show(&SharedQp::default(), 0).unwrap();
    assert!(qp.enter(new, &region, region_version, 8));
    assert!(!qp.enter(old, &region, region_version, 7));
    assert!(qp.copying().is_some_and(|copy| QpWords::is_at(copy, 8)));
}
