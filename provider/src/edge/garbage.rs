//! Garbage where a completion with an error says nothing (`URXE_QUIRKS`).

use urxe_engine::rng::Rng;
use urxe_ffi::verbs as v;

/// Fills in what has no meaning in a completion with an error: all but `wr_id`, `status`, `qp_num` and `vendor_err`
/// (`ibv_poll_cq(3)`).
#[cold]
pub(super) fn fill(wc: &mut v::ibv_wc, mut garbage: Rng) {
    let mut word = || {
        let [a, b, c, d, ..] = garbage.next_u64().to_ne_bytes();
        u32::from_ne_bytes([a, b, c, d])
    };
    (wc.opcode, wc.byte_len, wc.src_qp, wc.wc_flags) = (word(), word(), word(), word());
    wc.__bindgen_anon_1.imm_data = word();
    let [a, b, c, d] = word().to_ne_bytes();
    (wc.pkey_index, wc.slid) = (u16::from_ne_bytes([a, b]), u16::from_ne_bytes([c, d]));
    [wc.sl, wc.dlid_path_bits, ..] = word().to_ne_bytes();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defined_fields_stay() {
        // SAFETY: all-zero is a value of this plain C struct.
        let mut wc = unsafe { std::mem::zeroed::<v::ibv_wc>() };
        (wc.wr_id, wc.status, wc.qp_num) = (7, v::IBV_WC_WR_FLUSH_ERR, 9);
        fill(&mut wc, Rng::new(1));
        assert_eq!((wc.wr_id, wc.status, wc.qp_num, wc.vendor_err), (7, v::IBV_WC_WR_FLUSH_ERR, 9, 0));
        assert!(wc.opcode != 0 && wc.byte_len != 0 && wc.src_qp != 0 && wc.wc_flags != 0);
    }
}
