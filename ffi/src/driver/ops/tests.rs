use super::*;

/// `sizeof(struct verbs_context_ops) / sizeof(void *)` of rdma-core 34, 35, 36, 59, 62, 64 and 65.
const COUNTS: [usize; Layout::ALL.len()] = [73, 75, 76, 79, 81, 83, 93];

#[test]
fn ops_are_sorted_and_counted() {
    assert!(OPS.is_sorted_by(|a, b| a.name < b.name));
    for (layout, count) in Layout::ALL.into_iter().zip(COUNTS) {
        assert_eq!(layout.ops().count(), count, "{layout:?}");
    }
}

#[test]
fn a_table_has_each_op_at_its_place_and_null_elsewhere() {
    unsafe extern "C" fn poll(_: *mut ibv_cq, _: c_int, _: *mut ibv_wc) -> c_int {
        0
    }
    unsafe extern "C" fn speed(_: *mut ibv_context, _: u32, _: *mut u64) -> c_int {
        0
    }
    let ops = ContextOps { poll_cq: Some(poll), query_port_speed: Some(speed), ..ContextOps::NONE };
    for (layout, count) in Layout::ALL.into_iter().zip(COUNTS) {
        let table = ops.table(layout);
        assert_eq!(table.len(), count, "{layout:?}");
        for (name, slot) in layout.ops().zip(&table.slots) {
            let expected = match name {
                "poll_cq" => Some(poll as *const () as usize),
                "query_port_speed" => Some(speed as *const () as usize),
                _ => None,
            };
            assert_eq!(slot.map(|op| op as usize), expected, "{layout:?} {name}");
        }
    }
}

#[test]
fn an_op_moves_when_the_table_grows_before_it() {
    assert_eq!(Layout::V36.op_index("poll_cq"), Some(53));
    assert_eq!(Layout::V59.op_index("poll_cq"), Some(55));
    assert_eq!(Layout::V36.op_index("alloc_dmah"), None);
    assert_eq!(Layout::V59.op_index("alloc_dmah"), Some(2));
}
