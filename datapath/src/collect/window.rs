//! Numbers of one session. In: frames with the numbers that their sender gave them. Out: each frame once and, when
//! asked for, in the order of their numbers; and the books: what is missing, came twice, late or out of order.
//!
//! ```text
//!      seen or given up            │ held, with gaps              │ too far ahead:
//!  ────────────────────────────────┼──────────────────────────────┤ the front is released
//!  behind: remembered as bits      next                  next + frames
//! ```
//! - A frame that fills no gap waits until the gap is filled, more than `frames` numbers are in hand, or it has waited
//!   for `time`. With `frames` 0 none waits: each is released as it comes, and only the books know of the order.
//! - The first frames of a session may come out of order too: the start is the least number among those that came
//!   within `time`.
//! - A number further behind than the remembered ones or well before the first one, one more than [`FAR`] ahead, and
//!   the number 0 when it was seen before, is a sender that began anew if its successor follows at once (RFC 3550
//!   appendix A.1), and else a stray.
//! - Numbers are of 32 bits and wrap.

use std::collections::VecDeque;

/// Further ahead than this many numbers is no loss but another beginning.
pub const FAR: u32 = 1 << 24;

/// Numbers behind the next one that are remembered, at least.
const REMEMBERED: u32 = 256;

/// Numbers before the first one that may still be of the same beginning.
const NEAR: u64 = 16;

/// Most frames that a window may hold.
pub const MAX_FRAMES: u32 = 4096;

/// Bounds of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// Numbers that may be in hand, at most [`MAX_FRAMES`]; 0 for no reordering.
    pub frames: u32,
    /// How long a frame may wait, in nanoseconds.
    pub time: u64,
}

/// What became of frames. `received = released + duplicates + late + waiting`, always.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Books {
    /// Frames given to the window.
    pub received: u64,
    /// Frames it gave back.
    pub released: u64,
    /// Frames whose number had been seen. Not released.
    pub duplicates: u64,
    /// Frames whose number had been given up, and strays from far away. Not released.
    pub late: u64,
    /// Frames in hand.
    pub waiting: u64,
    /// Numbers that never came. One that comes late after all is taken off again.
    pub lost: u64,
    /// Released frames that came after one with a higher number.
    pub reordered: u64,
    /// How often the sender began anew.
    pub restarts: u64,
}

/// A frame on its way out of the window.
#[derive(Debug, PartialEq, Eq)]
pub enum Released<T> {
    /// The one that was given just now.
    This,
    /// One that waited.
    Held(T),
}

struct Held<T> {
    frame: T,
    since: u64,
    reordered: bool,
}

/// A frame that may be the first one of a new beginning.
struct Suspect<T> {
    number: u32,
    held: Held<T>,
    /// What it is if it is none.
    seen: bool,
}

/// See the module.
pub struct Window<T> {
    bounds: Bounds,
    books: Books,
    /// The least number that is neither released nor given up.
    next: u32,
    /// One more than the highest number seen.
    ahead: u32,
    /// Numbers from the beginning to `next`.
    passed: u64,
    begun: bool,
    /// While nothing has been released, a lower number may still become the first.
    gathering: bool,
    held: VecDeque<Option<Held<T>>>,
    in_hand: u32,
    /// When the frame that waits longest has waited enough; may be too early, never too late.
    due: u64,
    memory: Memory,
    suspect: Option<Suspect<T>>,
}

impl<T> Window<T> {
    /// An empty window.
    pub fn new(bounds: Bounds) -> Self {
        let bounds = Bounds { frames: bounds.frames.min(MAX_FRAMES), ..bounds };
        Self {
            bounds,
            books: Books::default(),
            next: 0,
            ahead: 0,
            passed: 0,
            begun: false,
            gathering: false,
            held: VecDeque::new(),
            in_hand: 0,
            due: u64::MAX,
            memory: Memory::new(bounds.frames.max(REMEMBERED).next_power_of_two()),
            suspect: None,
        }
    }

    /// What became of frames so far.
    pub fn books(&self) -> Books {
        Books { waiting: u64::from(self.in_hand) + u64::from(self.suspect.is_some()), ..self.books }
    }

    /// Whether frames wait.
    pub fn is_waiting(&self) -> bool {
        self.in_hand != 0 || self.suspect.is_some()
    }

    /// Takes a frame. `frame` is called when it has to wait; `out` gets what is released, in order.
    #[inline]
    pub fn push(
        &mut self,
        number: u32,
        now: u64,
        frame: impl FnOnce() -> T,
        out: &mut impl FnMut(Released<T>),
    ) {
        self.books.received += 1;
        if now >= self.due {
            self.expire(now, out);
        }
        if self.begun && !self.gathering && number == self.next && self.in_hand == 0 && self.suspect.is_none()
        {
            // The usual case: nothing waits, and it is the next one.
            self.memory.set(number, true);
            self.step();
            self.ahead = self.next;
            self.books.released += 1;
            return out(Released::This);
        }
        self.push_other(number, now, frame, out);
    }

    fn push_other(
        &mut self,
        number: u32,
        now: u64,
        frame: impl FnOnce() -> T,
        out: &mut impl FnMut(Released<T>),
    ) {
        if let Some(suspect) = self.suspect.take() {
            if number == suspect.number.wrapping_add(1) {
                self.begin_anew(suspect, out);
            } else if suspect.seen {
                self.books.duplicates += 1;
            } else {
                self.books.late += 1;
            }
        }
        if !self.begun {
            self.begin(number);
        }
        let offset = number.wrapping_sub(self.next);
        if offset <= FAR {
            self.take_ahead(number, offset, now, frame, out);
        } else {
            self.take_behind(number, now, frame, out);
        }
    }

    fn begin(&mut self, number: u32) {
        (self.begun, self.gathering) = (true, self.bounds.frames != 0);
        (self.next, self.ahead, self.passed) = (number, number, 0);
        self.memory.clear();
    }

    fn begin_anew(&mut self, suspect: Suspect<T>, out: &mut impl FnMut(Released<T>)) {
        self.flush(out);
        self.books.restarts += 1;
        self.begin(suspect.number);
        let Suspect { number, held, .. } = suspect;
        if self.gathering {
            self.place(number, 0, held);
        } else {
            self.memory.set(number, true);
            self.step();
            self.ahead = self.next;
            self.books.released += 1;
            out(Released::Held(held.frame));
        }
    }

    /// At or beyond the next number.
    fn take_ahead(
        &mut self,
        number: u32,
        offset: u32,
        now: u64,
        frame: impl FnOnce() -> T,
        out: &mut impl FnMut(Released<T>),
    ) {
        let frames = self.bounds.frames;
        if frames == 0 {
            self.give_up(offset);
            self.memory.set(number, true);
            self.step();
            self.ahead = self.next;
            self.books.released += 1;
            return out(Released::This);
        }
        if offset >= frames {
            // Makes room, so that it is the last one that fits.
            self.advance(offset - frames + 1, out);
        }
        let offset = number.wrapping_sub(self.next);
        if matches!(self.held.get(offset as usize), Some(Some(_))) {
            self.books.duplicates += 1;
            return;
        }
        let reordered = is_behind(number, self.ahead);
        if offset == 0 && !self.gathering {
            self.held.pop_front();
            self.memory.set(number, true);
            self.step();
            if !reordered {
                self.ahead = self.next;
            }
            self.books.reordered += u64::from(reordered);
            self.books.released += 1;
            out(Released::This);
        } else {
            self.place(number, offset, Held { frame: frame(), since: now, reordered });
        }
        self.release_ready(out);
    }

    fn place(&mut self, number: u32, offset: u32, held: Held<T>) {
        if !is_behind(number, self.ahead) {
            self.ahead = number.wrapping_add(1);
        }
        self.due = self.due.min(held.since.saturating_add(self.bounds.time));
        let at = offset as usize;
        if self.held.len() <= at {
            self.held.resize_with(at + 1, || None);
        }
        if let Some(slot) = self.held.get_mut(at) {
            *slot = Some(held);
            self.in_hand += 1;
        }
    }

    /// Behind the next number: before the beginning, seen, given up, or from elsewhere.
    fn take_behind(
        &mut self,
        number: u32,
        now: u64,
        frame: impl FnOnce() -> T,
        out: &mut impl FnMut(Released<T>),
    ) {
        let back = self.next.wrapping_sub(number);
        let span = self.held.len() as u32;
        if self.gathering && back.checked_add(span).is_some_and(|all| all <= self.bounds.frames) {
            for _ in 0..back {
                self.held.push_front(None);
            }
            self.next = number;
            return self.place(number, 0, Held { frame: frame(), since: now, reordered: true });
        }
        let remembered = back <= self.memory.len();
        let seen = remembered && self.memory.get(number);
        let before = u64::from(back).saturating_sub(self.passed);
        let zero = number == 0 && back > 1 && (seen || before != 0 && self.passed > NEAR);
        if !remembered || zero || before > NEAR {
            let held = Held { frame: frame(), since: now, reordered: false };
            self.due = self.due.min(now.saturating_add(self.bounds.time.max(SUSPECT)));
            self.suspect = Some(Suspect { number, held, seen });
            return;
        }
        if seen {
            self.books.duplicates += 1;
            return;
        }
        self.memory.set(number, true);
        if before == 0 {
            self.books.lost = self.books.lost.saturating_sub(1);
        }
        if self.bounds.frames == 0 {
            self.books.reordered += 1;
            self.books.released += 1;
            out(Released::This);
        } else {
            self.books.late += 1;
        }
    }

    /// Gives up and releases the first `count` numbers.
    fn advance(&mut self, mut count: u32, out: &mut impl FnMut(Released<T>)) {
        self.gathering = false;
        while count != 0 && !self.held.is_empty() {
            self.pop(out);
            count -= 1;
        }
        self.give_up(count);
    }

    fn pop(&mut self, out: &mut impl FnMut(Released<T>)) {
        match self.held.pop_front().flatten() {
            Some(held) => {
                self.in_hand -= 1;
                self.memory.set(self.next, true);
                self.books.released += 1;
                self.books.reordered += u64::from(held.reordered);
                out(Released::Held(held.frame));
            }
            None => {
                self.memory.set(self.next, false);
                self.books.lost += 1;
            }
        }
        self.step();
    }

    /// Numbers that nobody holds.
    fn give_up(&mut self, count: u32) {
        if count == 0 {
            return;
        }
        self.books.lost += u64::from(count);
        self.memory.forget(self.next, count);
        self.next = self.next.wrapping_add(count);
        self.passed += u64::from(count);
        if is_behind(self.ahead, self.next) {
            self.ahead = self.next;
        }
    }

    fn step(&mut self) {
        self.next = self.next.wrapping_add(1);
        self.passed += 1;
    }

    fn release_ready(&mut self, out: &mut impl FnMut(Released<T>)) {
        while !self.gathering && matches!(self.held.front(), Some(Some(_))) {
            self.pop(out);
        }
        if self.in_hand == 0 && self.suspect.is_none() {
            self.due = u64::MAX;
        }
    }

    /// Releases what has waited long enough.
    #[inline]
    pub fn tick(&mut self, now: u64, out: &mut impl FnMut(Released<T>)) {
        if now >= self.due {
            self.expire(now, out);
        }
    }

    #[cold]
    fn expire(&mut self, now: u64, out: &mut impl FnMut(Released<T>)) {
        let time = self.bounds.time;
        if let Some(suspect) = self.suspect.take_if(|one| is_over(one.held.since, time.max(SUSPECT), now)) {
            // Nobody followed: a new beginning as far as one can know.
            self.begin_anew(suspect, out);
        }
        let over = |slot: &Option<Held<T>>| slot.as_ref().is_some_and(|held| is_over(held.since, time, now));
        if let Some(last) = self.held.iter().rposition(over) {
            self.advance(last as u32 + 1, out);
            self.release_ready(out);
        }
        let waits = self.held.iter().flatten().map(|held| held.since.saturating_add(time)).min();
        let suspected = self.suspect.as_ref().map(|one| one.held.since.saturating_add(time.max(SUSPECT)));
        self.due = waits.into_iter().chain(suspected).min().unwrap_or(u64::MAX);
    }

    /// Releases everything; gaps before it are given up.
    pub fn flush(&mut self, out: &mut impl FnMut(Released<T>)) {
        if let Some(suspect) = self.suspect.take() {
            self.begin_anew(suspect, out);
        }
        self.gathering = false;
        while !self.held.is_empty() {
            self.pop(out);
        }
        self.due = u64::MAX;
    }
}

/// How long the successor of a suspected beginning is waited for, at least, in nanoseconds.
const SUSPECT: u64 = 1_000_000_000;

fn is_over(since: u64, time: u64, now: u64) -> bool {
    since.saturating_add(time) <= now
}

/// Whether `number` lies before `other` on the circle.
fn is_behind(number: u32, other: u32) -> bool {
    (number.wrapping_sub(other) as i32) < 0
}

/// A bit for each of the last numbers: whether it was seen.
struct Memory(Box<[u64]>);

impl Memory {
    /// `numbers` is a power of two, at least 64.
    fn new(numbers: u32) -> Self {
        Self(vec![0; numbers.div_ceil(64) as usize].into())
    }

    fn len(&self) -> u32 {
        self.0.len() as u32 * 64
    }

    fn place(&self, number: u32) -> (usize, u64) {
        let at = number & (self.len() - 1);
        (at as usize / 64, 1 << (at % 64))
    }

    fn get(&self, number: u32) -> bool {
        let (word, bit) = self.place(number);
        self.0.get(word).is_some_and(|word| word & bit != 0)
    }

    fn set(&mut self, number: u32, seen: bool) {
        let (word, bit) = self.place(number);
        if let Some(word) = self.0.get_mut(word) {
            *word = if seen { *word | bit } else { *word & !bit };
        }
    }

    fn forget(&mut self, first: u32, count: u32) {
        if count >= self.len() {
            return self.clear();
        }
        for number in 0..count {
            self.set(first.wrapping_add(number), false);
        }
    }

    fn clear(&mut self) {
        self.0.fill(0);
    }
}

#[cfg(test)]
mod tests;
