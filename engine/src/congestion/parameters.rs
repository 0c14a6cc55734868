//! Parameters of DCQCN and of congestion notification, under the names of MLNX_OFED (`ecn/roce_rp`, `ecn/roce_np`).
//!
//! Units: "DCQCN CC Parameters" of the DOCA documentation. Defaults: those of ConnectX firmware, as mlxconfig(1) lists them;
//! `min_time_between_cnps` differs by card. `cnp_802p_prio` is missing: frames have no priority here. The equations are those of Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015.

/// One row of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parameter {
    /// NVIDIA's name.
    pub name: &'static str,
    /// Value unless set.
    pub default: u32,
    /// Smallest value.
    pub least: u32,
    /// Largest value.
    pub most: u32,
    /// Unit of the value.
    pub unit: &'static str,
    /// Effect, in a line.
    pub help: &'static str,
}

/// Reason why a parameter cannot be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ParameterError {
    /// No parameter has the name.
    #[error("no parameter has this name")]
    Unknown,
    /// The value is out of the range of this row.
    #[error("{} is {} to {}", .0.name, .0.least, .0.most)]
    Range(&'static Parameter),
}

macro_rules! parameters {
    ($($name:ident: $default:literal, $least:literal..=$most:expr, $unit:literal, $help:literal;)*) => {
        /// Values of all parameters; rates in Mbit/s, times in microseconds.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct Parameters {
            $(#[doc = $help] pub $name: u32,)*
        }

        impl Default for Parameters {
            fn default() -> Self {
                Self::DEFAULT
            }
        }

        impl Parameters {
            /// The documented defaults.
            pub const DEFAULT: Self = Self { $($name: $default,)* };

            /// The table.
            pub const ALL: &'static [Parameter] = &[
                $(Parameter {
                    name: stringify!($name), default: $default, least: $least, most: $most, unit: $unit, help: $help,
                },)*
            ];

            fn place(&mut self, name: &str) -> Option<&mut u32> {
                match name {
                    $(stringify!($name) => Some(&mut self.$name),)*
                    _ => None,
                }
            }
        }
    };
}

parameters! {
    rpg_time_reset: 300, 1..=131_071, "µs", "Time between rate increases while no CNP comes";
    rpg_byte_reset: 32_767, 0..=32_767, "bytes", "Bytes sent between rate increases while no CNP comes; 0: the timer alone increases";
    rpg_threshold: 1, 1..=31, "increases", "Increases by timer or by bytes until fast recovery ends";
    rpg_ai_rate: 5, 1..=400_000, "Mbit/s", "Additive increase of the target rate";
    rpg_hai_rate: 50, 1..=400_000, "Mbit/s", "Hyper increase of the target rate";
    rpg_max_rate: 0, 0..=400_000, "Mbit/s", "Rate at which a queue pair is no longer limited; 0: the speed of the interface";
    rpg_min_rate: 1, 1..=400_000, "Mbit/s", "Least rate of a queue pair";
    rpg_min_dec_fac: 50, 0..=100, "%", "Part of the rate that a decrease leaves at least";
    rpg_gd: 11, 10..=11, "log2", "A CNP takes alpha · 2^(10 - rpg_gd) off the rate: half of alpha by default";
    clamp_tgt_rate: 0, 0..=1, "0|1", "Each CNP sets the target rate to the current one";
    clamp_tgt_rate_after_time_inc: 1, 0..=1, "0|1", "A CNP after an increase by the timer sets the target rate to the current one";
    rate_to_set_on_first_cnp: 0, 0..=400_000, "Mbit/s", "Rate after the first CNP; 0: that of the interface, less the first decrease";
    rate_reduce_monitor_period: 4, 1..=1_000_000, "µs", "Least time between decreases";
    initial_alpha_value: 1023, 1..=1023, "1/1024", "Alpha at the first CNP";
    dce_tcp_g: 1019, 0..=1023, "1/1024", "Weight of the old alpha: 1 - g of the paper";
    dce_tcp_rtt: 1, 1..=131_071, "µs", "Time between updates of alpha while no CNP comes";
    min_time_between_cnps: 4, 0..=4095, "µs", "Least time between two CNPs of a queue pair";
    cnp_dscp: 48, 0..=63, "DSCP", "DSCP of CNPs";
    swift_target: 100, 1..=1_000_000, "µs", "swift: delay that queues may add to the least round trip seen";
}

impl Parameters {
    /// Sets the parameter of this name.
    ///
    /// # Errors
    /// [`ParameterError`]; nothing is changed then.
    pub fn set(&mut self, name: &str, value: u32) -> Result<(), ParameterError> {
        let row = Self::ALL.iter().find(|row| row.name == name).ok_or(ParameterError::Unknown)?;
        if !(row.least..=row.most).contains(&value) {
            return Err(ParameterError::Range(row));
        }
        *self.place(name).ok_or(ParameterError::Unknown)? = value;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_can_be_set_and_nothing_out_of_range() {
        let mut parameters = Parameters::default();
        for row in Parameters::ALL {
            assert_eq!(parameters.set(row.name, row.default), Ok(()), "{}", row.name);
            assert_eq!(parameters.set(row.name, row.most + 1), Err(ParameterError::Range(row)), "{}", row.name);
        }
        assert_eq!(parameters, Parameters::default());
        assert_eq!(parameters.set("rpg_ai_rate", 40), Ok(()));
        assert_eq!(parameters.rpg_ai_rate, 40);
        assert_eq!(parameters.set("rpg_air_rate", 40), Err(ParameterError::Unknown));
    }
}
