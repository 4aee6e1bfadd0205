//! Who sends most in a session. In: pairs of inner addresses and bytes. Out: the heaviest pairs, with the most by
//! which each may be too high.
//!
//! Space-saving (Metwally, Agrawal, El Abbadi, 2005): a fixed number of places; a pair without one takes the place of
//! the lightest, and its bytes as its own error. Every pair with more than `total / PLACES` bytes has a place, and no
//! error is larger than that.

use std::net::IpAddr;

use hashbrown::HashMap;
use podwire_core::wire::ethernet;

/// Pairs that are counted at a time.
pub const PLACES: usize = 64;

/// Source and destination of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pair {
    /// IP addresses.
    Ip(IpAddr, IpAddr),
    /// MAC addresses of a frame that is not IP.
    Mac([u8; 6], [u8; 6]),
}

impl Pair {
    /// The pair of a frame; `None` without a whole Ethernet header.
    pub fn of(frame: &[u8]) -> Option<Self> {
        let ethernet = ethernet::View::parse(frame, 0).ok()?;
        let ip = ethernet.network().ok().and_then(|(kind, at)| {
            // A frame that was cut still has its addresses: only the header is needed.
            let header = frame.get(at..)?;
            match kind {
                ethernet::ETHER_TYPE_IPV4 => v4(header),
                ethernet::ETHER_TYPE_IPV6 => v6(header),
                _ => None,
            }
        });
        Some(ip.unwrap_or_else(|| Self::Mac(ethernet.source(), ethernet.destination())))
    }
}

fn v4(header: &[u8]) -> Option<Pair> {
    let (_, addresses) = header.get(..20)?.split_at(12);
    let (source, destination) = addresses.split_at(4);
    let address = |bytes: &[u8]| <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from);
    Some(Pair::Ip(address(source)?, address(destination)?))
}

fn v6(header: &[u8]) -> Option<Pair> {
    let (_, addresses) = header.get(..40)?.split_at(8);
    let (source, destination) = addresses.split_at(16);
    let address = |bytes: &[u8]| <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from);
    Some(Pair::Ip(address(source)?, address(destination)?))
}

/// A pair with its counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Talker {
    /// Who to whom.
    pub pair: Pair,
    /// Frames since it has its place.
    pub frames: u64,
    /// Bytes, never too low.
    pub bytes: u64,
    /// By how much they may be too high.
    pub error: u64,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Talkers {
    places: HashMap<Pair, u8>,
    /// Apart from the rest, so that the lightest is found in few cache lines.
    bytes: Vec<u64>,
    rest: Vec<(Pair, u64, u64)>,
    /// The pair of the last frame and its place: often that of the next one too.
    recent: Option<(Pair, usize)>,
}

impl Talkers {
    /// Counts a frame.
    pub fn count(&mut self, pair: Pair, bytes: u64) {
        let at = match self.recent {
            Some((last, at)) if last == pair => at,
            _ => match self.places.get(&pair) {
                Some(place) => usize::from(*place),
                None => self.place(pair),
            },
        };
        self.recent = Some((pair, at));
        if let (Some(all), Some((_, frames, _))) = (self.bytes.get_mut(at), self.rest.get_mut(at)) {
            *all += bytes;
            *frames += 1;
        }
    }

    #[cold]
    fn place(&mut self, pair: Pair) -> usize {
        if self.rest.len() < PLACES {
            let at = self.rest.len();
            self.bytes.push(0);
            self.rest.push((pair, 0, 0));
            self.places.insert(pair, at as u8);
            return at;
        }
        let lightest = self.bytes.iter().copied().min().unwrap_or_default();
        let at = self.bytes.iter().position(|bytes| *bytes == lightest).unwrap_or_default();
        if let Some(row) = self.rest.get_mut(at) {
            self.places.remove(&row.0);
            *row = (pair, 0, lightest);
        }
        self.places.insert(pair, at as u8);
        at
    }

    /// The heaviest, at most `count` of them.
    pub fn top(&self, count: usize) -> Vec<Talker> {
        let all = self.bytes.iter().zip(&self.rest);
        let mut all: Vec<Talker> = all
            .map(|(bytes, (pair, frames, error))| Talker {
                pair: *pair,
                frames: *frames,
                bytes: *bytes,
                error: *error,
            })
            .collect();
        all.sort_by_key(|talker| std::cmp::Reverse(talker.bytes));
        all.truncate(count);
        all
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::{PLACES, Pair, Talkers};

    proptest! {
        #[test]
        fn the_error_is_what_is_promised(stream in proptest::collection::vec((0u8..=255, 1u64..1500), 0..2000)) {
            let (mut talkers, mut exact) = (Talkers::default(), HashMap::new());
            for (number, bytes) in &stream {
                // A few are heavy.
                let number = if *bytes % 3 == 0 { number % 4 } else { *number };
                let pair = Pair::Mac([number; 6], [0; 6]);
                talkers.count(pair, *bytes);
                *exact.entry(pair).or_insert(0) += bytes;
            }
            let total: u64 = exact.values().sum();
            let top = talkers.top(PLACES);
            prop_assert!(top.len() <= PLACES);
            for talker in &top {
                let exact = exact[&talker.pair];
                prop_assert!(talker.bytes >= exact && talker.bytes - exact <= talker.error);
                prop_assert!(talker.error <= total / PLACES as u64);
            }
            for (pair, bytes) in exact {
                let has = top.iter().any(|talker| talker.pair == pair);
                prop_assert!(has || bytes <= total / PLACES as u64);
            }
        }
    }
}
