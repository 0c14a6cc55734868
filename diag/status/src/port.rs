//! Attributes of the port that programs read in sysfs, and that verbs must agree with.

/// `CapabilityMask` of PortInfo (IBA 14.2.5.6), in sysfs `cap_mask`: communication management, as the kernel's rxe has it.
pub const CAPABILITY_MASK: u32 = 1 << 16;
