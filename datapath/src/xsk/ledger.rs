//! Where every buffer is. In: each move of a buffer. Out: whether it could be there, and how many are where.

/// A place.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// Nobody's: to be filled or written.
    Free = 0,
    /// The kernel's, to receive into.
    Fill = 1,
    /// In the caller's hands.
    User = 2,
    /// The kernel's, to send from.
    Tx = 3,
}

impl Place {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Free, Self::Fill, Self::User, Self::Tx];
}

/// The places of all buffers of one pool.
#[derive(Clone, Debug)]
pub struct Ledger {
    places: Vec<Place>,
    counts: [u64; Place::ALL.len()],
    refused: u64,
}

impl Ledger {
    /// So many buffers, all free.
    pub fn new(buffers: u32) -> Self {
        let mut counts = [0; Place::ALL.len()];
        counts[Place::Free as usize] = u64::from(buffers);
        Self { places: vec![Place::Free; buffers as usize], counts, refused: 0 }
    }

    /// Whether a buffer is in a place.
    pub fn is_in(&self, buffer: usize, place: Place) -> bool {
        self.places.get(buffer) == Some(&place)
    }

    /// Moves a buffer. `false`, and nothing is moved, when it is not where it comes from or there is no such buffer.
    #[must_use]
    pub fn shift(&mut self, buffer: usize, from: Place, to: Place) -> bool {
        self.moving(from, to).shift(buffer)
    }

    /// Moves several buffers from one place to another.
    pub fn moving(&mut self, from: Place, to: Place) -> Moving<'_> {
        Moving { ledger: self, from, to, moved: 0 }
    }

    /// Buffers in a place.
    pub fn count(&self, place: Place) -> u64 {
        self.counts[place as usize]
    }

    /// All buffers.
    pub fn total(&self) -> u32 {
        self.places.len() as u32
    }

    /// Moves that were refused: always 0, unless the kernel named a buffer that it did not have.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Whether every buffer is in one place, as counted, and none was refused.
    pub fn balances(&self) -> bool {
        let counted = |place: &Place| self.places.iter().filter(|other| *other == place).count() as u64;
        self.refused == 0 && Place::ALL.iter().all(|place| counted(place) == self.count(*place))
    }
}

/// Buffers on their way from one place to another. They are counted together, when this is dropped: it is a good part
/// of what a buffer costs.
#[derive(Debug)]
pub struct Moving<'a> {
    ledger: &'a mut Ledger,
    from: Place,
    to: Place,
    moved: u64,
}

impl Moving<'_> {
    /// Moves one. `false`, and nothing is moved, when it is not where it comes from or there is no such buffer.
    #[must_use]
    #[inline]
    pub fn shift(&mut self, buffer: usize) -> bool {
        match self.ledger.places.get_mut(buffer) {
            Some(place) if *place == self.from => {
                *place = self.to;
                self.moved += 1;
                true
            }
            _ => {
                self.ledger.refused += 1;
                false
            }
        }
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.ledger.counts[self.to as usize] += self.moved;
        self.ledger.counts[self.from as usize] -= self.moved;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn place() -> impl Strategy<Value = Place> {
        prop::sample::select(&Place::ALL[..])
    }

    proptest! {
        #[test]
        fn a_buffer_is_in_one_place(moves in prop::collection::vec((0usize..10, place(), place()), 0..200)) {
            let mut ledger = Ledger::new(8);
            let mut model = [Place::Free; 8];
            let mut refused = 0;
            for (buffer, from, to) in moves {
                let fits = model.get(buffer) == Some(&from);
                prop_assert_eq!(ledger.shift(buffer, from, to), fits);
                if fits {
                    model[buffer] = to;
                } else {
                    refused += 1;
                }
                for place in Place::ALL {
                    let there = model.iter().filter(|other| **other == place).count() as u64;
                    prop_assert_eq!(ledger.count(place), there);
                }
            }
            prop_assert_eq!(ledger.refused(), refused);
            prop_assert_eq!(ledger.balances(), refused == 0);
        }

        #[test]
        fn several_buffers_are_moved_as_one_after_another(
            moves in prop::collection::vec((prop::collection::vec(0usize..10, 0..8), place(), place()), 0..50)
        ) {
            let (mut together, mut single) = (Ledger::new(8), Ledger::new(8));
            for (buffers, from, to) in moves {
                let mut moving = together.moving(from, to);
                let moved: Vec<bool> = buffers.iter().map(|buffer| moving.shift(*buffer)).collect();
                drop(moving);
                let expected: Vec<bool> = buffers.iter().map(|buffer| single.shift(*buffer, from, to)).collect();
                prop_assert_eq!(moved, expected);
                for place in Place::ALL {
                    prop_assert_eq!(together.count(place), single.count(place));
                }
                prop_assert_eq!(together.refused(), single.refused());
            }
        }
    }
}
