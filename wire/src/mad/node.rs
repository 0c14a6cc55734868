//! Fields of attributes that describe nodes, ports and switches (IBA 14.2.5).

use super::field::Field;

/// Bytes of `NodeDescription`.
pub const DESCRIPTION_LEN: usize = 64;

/// `NodeInfo` (IBA 14.2.5.3).
pub mod node_info {
    use super::Field;

    /// Bytes of the attribute.
    pub const LEN: usize = 40;
    /// Channel adapter, as [`NODE_TYPE`].
    pub const CHANNEL_ADAPTER: u64 = 1;
    /// Switch, as [`NODE_TYPE`].
    pub const SWITCH: u64 = 2;
    /// `BaseVersion`
    pub const BASE_VERSION: Field = Field::bytes(0, 1);
    /// `ClassVersion`
    pub const CLASS_VERSION: Field = Field::bytes(1, 1);
    /// `NodeType`
    pub const NODE_TYPE: Field = Field::bytes(2, 1);
    /// `NumPorts`
    pub const NUM_PORTS: Field = Field::bytes(3, 1);
    /// `SystemImageGUID`
    pub const SYSTEM_IMAGE_GUID: Field = Field::bytes(4, 8);
    /// `NodeGUID`
    pub const NODE_GUID: Field = Field::bytes(12, 8);
    /// `PortGUID`
    pub const PORT_GUID: Field = Field::bytes(20, 8);
    /// `PartitionCap`
    pub const PARTITION_CAP: Field = Field::bytes(28, 2);
    /// `DeviceID`
    pub const DEVICE_ID: Field = Field::bytes(30, 2);
    /// `Revision`
    pub const REVISION: Field = Field::bytes(32, 4);
    /// `LocalPortNum`
    pub const LOCAL_PORT: Field = Field::bytes(36, 1);
    /// `VendorID`
    pub const VENDOR_ID: Field = Field::bytes(37, 3);
    /// All fields, in the order of component masks.
    pub const FIELDS: [Field; 12] = [
        BASE_VERSION,
        CLASS_VERSION,
        NODE_TYPE,
        NUM_PORTS,
        SYSTEM_IMAGE_GUID,
        NODE_GUID,
        PORT_GUID,
        PARTITION_CAP,
        DEVICE_ID,
        REVISION,
        LOCAL_PORT,
        VENDOR_ID,
    ];
}

/// `PortInfo` (IBA 14.2.5.6).
pub mod port_info {
    use super::Field;

    /// Bytes of the attribute.
    pub const LEN: usize = 64;
    /// `M_Key`
    pub const M_KEY: Field = Field::bytes(0, 8);
    /// `GidPrefix`
    pub const GID_PREFIX: Field = Field::bytes(8, 8);
    /// `LID`
    pub const LID: Field = Field::bytes(16, 2);
    /// `MasterSMLID`
    pub const SM_LID: Field = Field::bytes(18, 2);
    /// `CapabilityMask`
    pub const CAPABILITY_MASK: Field = Field::bytes(20, 4);
    /// `DiagCode`
    pub const DIAG_CODE: Field = Field::bytes(24, 2);
    /// `M_KeyLeasePeriod`
    pub const M_KEY_LEASE: Field = Field::bytes(26, 2);
    /// `LocalPortNum`
    pub const LOCAL_PORT: Field = Field::bytes(28, 1);
    /// `LinkWidthEnabled`
    pub const WIDTH_ENABLED: Field = Field::bytes(29, 1);
    /// `LinkWidthSupported`
    pub const WIDTH_SUPPORTED: Field = Field::bytes(30, 1);
    /// `LinkWidthActive`
    pub const WIDTH_ACTIVE: Field = Field::bytes(31, 1);
    /// `LinkSpeedSupported`
    pub const SPEED_SUPPORTED: Field = Field::bits(32, 0, 4);
    /// `PortState`
    pub const STATE: Field = Field::bits(32, 4, 4);
    /// `PortPhysicalState`
    pub const PHYSICAL_STATE: Field = Field::bits(33, 0, 4);
    /// `LinkDownDefaultState`
    pub const DOWN_DEFAULT: Field = Field::bits(33, 4, 4);
    /// `M_KeyProtectBits`
    pub const M_KEY_PROTECTION: Field = Field::bits(34, 0, 2);
    /// `LMC`
    pub const LMC: Field = Field::bits(34, 5, 3);
    /// `LinkSpeedActive`
    pub const SPEED_ACTIVE: Field = Field::bits(35, 0, 4);
    /// `LinkSpeedEnabled`
    pub const SPEED_ENABLED: Field = Field::bits(35, 4, 4);
    /// `NeighborMTU`
    pub const NEIGHBOR_MTU: Field = Field::bits(36, 0, 4);
    /// `MasterSMSL`
    pub const SM_SL: Field = Field::bits(36, 4, 4);
    /// `VLCap`
    pub const VL_CAP: Field = Field::bits(37, 0, 4);
    /// `InitType`
    pub const INIT_TYPE: Field = Field::bits(37, 4, 4);
    /// `VLHighLimit`
    pub const VL_HIGH_LIMIT: Field = Field::bytes(38, 1);
    /// `VLArbitrationHighCap`
    pub const VL_ARBITRATION_HIGH: Field = Field::bytes(39, 1);
    /// `VLArbitrationLowCap`
    pub const VL_ARBITRATION_LOW: Field = Field::bytes(40, 1);
    /// `InitTypeReply`
    pub const INIT_TYPE_REPLY: Field = Field::bits(41, 0, 4);
    /// `MTUCap`
    pub const MTU_CAP: Field = Field::bits(41, 4, 4);
    /// `VLStallCount`
    pub const VL_STALL_COUNT: Field = Field::bits(42, 0, 3);
    /// `HOQLife`
    pub const HOQ_LIFE: Field = Field::bits(42, 3, 5);
    /// `OperationalVLs`
    pub const OPERATIONAL_VLS: Field = Field::bits(43, 0, 4);
    /// `PartitionEnforcementInbound`
    pub const ENFORCE_IN: Field = Field::bits(43, 4, 1);
    /// `PartitionEnforcementOutbound`
    pub const ENFORCE_OUT: Field = Field::bits(43, 5, 1);
    /// `FilterRawInbound`
    pub const FILTER_IN: Field = Field::bits(43, 6, 1);
    /// `FilterRawOutbound`
    pub const FILTER_OUT: Field = Field::bits(43, 7, 1);
    /// `M_KeyViolations`
    pub const M_KEY_VIOLATIONS: Field = Field::bytes(44, 2);
    /// `P_KeyViolations`
    pub const P_KEY_VIOLATIONS: Field = Field::bytes(46, 2);
    /// `Q_KeyViolations`
    pub const Q_KEY_VIOLATIONS: Field = Field::bytes(48, 2);
    /// `GUIDCap`
    pub const GUID_CAP: Field = Field::bytes(50, 1);
    /// `ClientReregister`
    pub const CLIENT_REREGISTER: Field = Field::bits(51, 0, 1);
    /// `SubnetTimeOut`
    pub const SUBNET_TIMEOUT: Field = Field::bits(51, 3, 5);
    /// `RespTimeValue`
    pub const RESPONSE_TIME: Field = Field::bits(52, 3, 5);
    /// `LocalPhyErrors`
    pub const PHYSICAL_ERRORS: Field = Field::bits(53, 0, 4);
    /// `OverrunErrors`
    pub const OVERRUN_ERRORS: Field = Field::bits(53, 4, 4);
    /// `LinkSpeedExtActive`
    pub const SPEED_EXT_ACTIVE: Field = Field::bits(62, 0, 4);
    /// `LinkSpeedExtSupported`
    pub const SPEED_EXT_SUPPORTED: Field = Field::bits(62, 4, 4);
    /// `LinkSpeedExtEnabled`
    pub const SPEED_EXT_ENABLED: Field = Field::bits(63, 3, 5);

    /// Fields that `Set()` stores as they are. Others it ignores, refuses, or acts on.
    pub const WRITABLE: [Field; 15] = [
        M_KEY,
        GID_PREFIX,
        SM_LID,
        M_KEY_LEASE,
        DOWN_DEFAULT,
        M_KEY_PROTECTION,
        NEIGHBOR_MTU,
        SM_SL,
        VL_HIGH_LIMIT,
        VL_STALL_COUNT,
        HOQ_LIFE,
        SUBNET_TIMEOUT,
        PHYSICAL_ERRORS,
        OVERRUN_ERRORS,
        OPERATIONAL_VLS,
    ];

    const RESERVED: Field = Field::bits(0, 0, 0);

    /// Fields in the order of component masks of `PortInfoRecord` (IBA 15.2.5.3), behind its own three.
    pub const FIELDS: [Field; 46] = [
        M_KEY,
        GID_PREFIX,
        LID,
        SM_LID,
        CAPABILITY_MASK,
        DIAG_CODE,
        M_KEY_LEASE,
        LOCAL_PORT,
        WIDTH_ENABLED,
        WIDTH_SUPPORTED,
        WIDTH_ACTIVE,
        SPEED_SUPPORTED,
        STATE,
        PHYSICAL_STATE,
        DOWN_DEFAULT,
        M_KEY_PROTECTION,
        RESERVED,
        LMC,
        SPEED_ACTIVE,
        SPEED_ENABLED,
        NEIGHBOR_MTU,
        SM_SL,
        VL_CAP,
        INIT_TYPE,
        VL_HIGH_LIMIT,
        VL_ARBITRATION_HIGH,
        VL_ARBITRATION_LOW,
        INIT_TYPE_REPLY,
        MTU_CAP,
        VL_STALL_COUNT,
        HOQ_LIFE,
        OPERATIONAL_VLS,
        ENFORCE_IN,
        ENFORCE_OUT,
        FILTER_IN,
        FILTER_OUT,
        M_KEY_VIOLATIONS,
        P_KEY_VIOLATIONS,
        Q_KEY_VIOLATIONS,
        GUID_CAP,
        RESERVED,
        SUBNET_TIMEOUT,
        RESERVED,
        RESPONSE_TIME,
        PHYSICAL_ERRORS,
        OVERRUN_ERRORS,
    ];

    /// `PortState`: no link.
    pub const DOWN: u64 = 1;
    /// `PortState`: a link, subnet management only.
    pub const INIT: u64 = 2;
    /// `PortState`: about to be active.
    pub const ARMED: u64 = 3;
    /// `PortState`: everything passes.
    pub const ACTIVE: u64 = 4;
    /// `PortPhysicalState`: no peer is found.
    pub const POLLING: u64 = 2;
    /// `PortPhysicalState`: there is a link.
    pub const LINK_UP: u64 = 5;
    /// Bit of `CapabilityMask`: the port's subnet manager.
    pub const IS_SM: u64 = 1 << 1;
    /// Bit of `CapabilityMask`: extended link speeds.
    pub const HAS_EXTENDED_SPEEDS: u64 = 1 << 14;
}

/// `SwitchInfo` (IBA 14.2.5.4).
pub mod switch_info {
    use super::Field;

    /// Bytes of the attribute.
    pub const LEN: usize = 20;
    /// `LinearFDBCap`
    pub const LINEAR_CAP: Field = Field::bytes(0, 2);
    /// `MulticastFDBCap`
    pub const MULTICAST_CAP: Field = Field::bytes(4, 2);
    /// `LinearFDBTop`
    pub const LINEAR_TOP: Field = Field::bytes(6, 2);
    /// `DefaultPort`
    pub const DEFAULT_PORT: Field = Field::bytes(8, 1);
    /// `DefaultMulticastPrimaryPort`
    pub const MULTICAST_PRIMARY: Field = Field::bytes(9, 1);
    /// `DefaultMulticastNotPrimaryPort`
    pub const MULTICAST_NOT_PRIMARY: Field = Field::bytes(10, 1);
    /// `LifeTimeValue`
    pub const LIFE_TIME: Field = Field::bits(11, 0, 5);
    /// `PortStateChange`: reads as changed, and a one that is written clears it.
    pub const PORT_STATE_CHANGE: Field = Field::bits(11, 5, 1);
    /// `EnhancedPort0`
    pub const ENHANCED_PORT_0: Field = Field::bits(16, 4, 1);
    /// `MulticastFDBTop`
    pub const MULTICAST_TOP: Field = Field::bytes(18, 2);

    /// Fields that `Set()` stores.
    pub const WRITABLE: [Field; 6] =
        [LINEAR_TOP, DEFAULT_PORT, MULTICAST_PRIMARY, MULTICAST_NOT_PRIMARY, LIFE_TIME, MULTICAST_TOP];
}

/// `SMInfo` (IBA 14.2.5.13).
pub mod sm_info {
    use super::Field;

    /// Bytes of the attribute.
    pub const LEN: usize = 21;
    /// `GUID` of the port
    pub const GUID: Field = Field::bytes(0, 8);
    /// `SM_Key`
    pub const SM_KEY: Field = Field::bytes(8, 8);
    /// `ActCount`
    pub const ACTIVITY: Field = Field::bytes(16, 4);
    /// `Priority`
    pub const PRIORITY: Field = Field::bits(20, 0, 4);
    /// `SMState`
    pub const STATE: Field = Field::bits(20, 4, 4);
    /// `SMState`: master.
    pub const MASTER: u64 = 3;
}

/// `Notice` (IBA 13.4.8.2).
pub mod notice {
    use super::Field;

    /// `IsGeneric`
    pub const IS_GENERIC: Field = Field::bits(0, 0, 1);
    /// `Type`
    pub const TYPE: Field = Field::bits(0, 1, 7);
    /// `ProducerType`: as [`super::node_info::NODE_TYPE`], or [`PRODUCER_MANAGER`].
    pub const PRODUCER: Field = Field::bytes(1, 3);
    /// `TrapNumber`
    pub const TRAP: Field = Field::bytes(4, 2);
    /// `IssuerLID`
    pub const ISSUER_LID: Field = Field::bytes(6, 2);
    /// `DataDetails`
    pub const DETAILS: usize = 10;
    /// `IssuerGID`, in notices of subnet administration.
    pub const ISSUER_GID: Field = Field::bytes(64, 16);

    /// Type of a notice: of urgency.
    pub const URGENT: u64 = 1;
    /// Type of a notice: about subnet management.
    pub const SUBNET_MANAGEMENT: u64 = 3;
    /// Type of a notice: for information.
    pub const INFORMATION: u64 = 4;
    /// Producer of a notice: the subnet manager.
    pub const PRODUCER_MANAGER: u64 = 4;

    /// Trap number: a GID is in service.
    pub const IN_SERVICE: u64 = 64;
    /// Trap number: a GID is out of service.
    pub const OUT_OF_SERVICE: u64 = 65;
    /// Trap number: a multicast group was made.
    pub const GROUP_MADE: u64 = 66;
    /// Trap number: a multicast group was deleted.
    pub const GROUP_DELETED: u64 = 67;
    /// Trap number: the state of a link of the switch at [`LINK_LID`] has changed.
    pub const LINK_CHANGED: u64 = 128;
    /// Trap number: the capability mask of the port at [`CAPABILITY_LID`] has changed.
    pub const CAPABILITY_CHANGED: u64 = 144;

    /// GID that traps 64 to 67 are about.
    pub const GID: Field = Field::bytes(DETAILS + 6, 16);
    /// LID of the switch that trap 128 is about.
    pub const LINK_LID: Field = Field::bytes(DETAILS, 2);
    /// LID of the port that trap 144 is about.
    pub const CAPABILITY_LID: Field = Field::bytes(DETAILS + 2, 2);
    /// Capability mask of trap 144.
    pub const CAPABILITY_MASK: Field = Field::bytes(DETAILS + 6, 4);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_an_attribute_do_not_overlap() {
        let of = |fields: &[Field], len: usize| {
            let mut bytes = std::vec![0_u8; len];
            for field in fields {
                assert_eq!(field.get(&bytes), 0, "{field:?} overlaps");
                field.put(&mut bytes, u64::MAX);
            }
        };
        of(&node_info::FIELDS, node_info::LEN);
        of(&port_info::FIELDS, port_info::LEN);
        of(&switch_info::WRITABLE, switch_info::LEN);
        use sm_info::{ACTIVITY, GUID, PRIORITY, SM_KEY, STATE};
        of(&[GUID, SM_KEY, ACTIVITY, PRIORITY, STATE], sm_info::LEN);
    }
}
