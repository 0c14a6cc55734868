//! Layouts of GID tables.

/// Order and types of the rows of a port's GID table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GidLayout {
    /// One row a GID, of type RoCE v2, as the kernel's rxe has it.
    #[default]
    Rxe,
    /// Two rows a GID, of type RoCE v1 and RoCE v2, as cards that know both have it: index 3 is RoCE v2 of the first
    /// IPv4 address.
    Mlx5,
}

impl GidLayout {
    /// Returns the layout of this name in `--gid-layout`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "rxe" => Some(Self::Rxe),
            "mlx5" => Some(Self::Mlx5),
            _ => None,
        }
    }

    const fn rows_per_gid(self) -> usize {
        match self {
            Self::Rxe => 1,
            Self::Mlx5 => 2,
        }
    }

    /// Returns the number of rows that so many GIDs take.
    #[must_use]
    pub const fn rows(self, gids: usize) -> usize {
        gids * self.rows_per_gid()
    }

    /// Returns which of the GIDs is in a row.
    #[must_use]
    pub const fn position(self, row: usize) -> usize {
        row / self.rows_per_gid()
    }

    /// Whether a row is of type RoCE v1.
    #[must_use]
    pub const fn is_roce_v1(self, row: usize) -> bool {
        match self {
            Self::Rxe => false,
            Self::Mlx5 => row.is_multiple_of(2),
        }
    }

    /// Returns the row of type RoCE v2 of the GID at a position.
    #[must_use]
    pub const fn row(self, position: usize) -> usize {
        self.rows(position + 1) - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_have_the_first_ipv4_address_at_index_3() {
        let mlx5 = GidLayout::from_name("mlx5").unwrap();
        assert_eq!((mlx5.row(0), mlx5.row(1), mlx5.rows(3)), (1, 3, 6));
        assert_eq!(
            [0, 1, 2, 3].map(|row| (mlx5.position(row), mlx5.is_roce_v1(row))),
            [(0, true), (0, false), (1, true), (1, false)]
        );
        let rxe = GidLayout::default();
        for row in 0..5 {
            assert_eq!((rxe.row(row), rxe.position(row), rxe.is_roce_v1(row), rxe.rows(row)), (row, row, false, row));
        }
    }
}
