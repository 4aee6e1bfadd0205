//! Numbers that stay the same while a thing lives: endpoint slots and session numbers, which name counters.

/// A table of slots.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    taken: Vec<Option<T>>,
}

impl<T: PartialEq> Slots<T> {
    pub(crate) fn new(size: u32) -> Self {
        Self { taken: (0..size).map(|_| None).collect() }
    }

    /// How many slots there are.
    pub(crate) fn size(&self) -> usize {
        self.taken.len()
    }

    /// The slot of a thing that has one.
    pub(crate) fn find(&self, thing: &T) -> Option<u32> {
        self.taken.iter().position(|slot| slot.as_ref() == Some(thing)).map(|slot| slot as u32)
    }

    /// The lowest free slot, given to `thing`.
    pub(crate) fn take(&mut self, thing: T) -> Option<u32> {
        let slot = self.taken.iter().position(Option::is_none)?;
        self.taken[slot] = Some(thing);
        Some(slot as u32)
    }

    /// The lowest free slot that may be had, given to `thing`.
    pub(crate) fn take_where(&mut self, thing: T, may: impl Fn(&u32) -> bool) -> Option<u32> {
        let slot =
            (0..self.taken.len() as u32).find(|slot| self.taken[*slot as usize].is_none() && may(slot))?;
        self.taken[slot as usize] = Some(thing);
        Some(slot)
    }

    /// Gives a certain slot, as read from the kernel after a restart; `false` when it is taken.
    pub(crate) fn adopt(&mut self, slot: u32, thing: T) -> bool {
        match self.taken.get_mut(slot as usize) {
            Some(free @ None) => {
                *free = Some(thing);
                true
            }
            _ => false,
        }
    }

    /// Frees the slots of all things that are not kept.
    pub(crate) fn retain(&mut self, keep: impl Fn(&T) -> bool) {
        for slot in &mut self.taken {
            if slot.as_ref().is_some_and(|thing| !keep(thing)) {
                *slot = None;
            }
        }
    }

    /// Slots in use, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.taken.iter().enumerate().filter_map(|(slot, thing)| Some((slot as u32, thing.as_ref()?)))
    }
}
