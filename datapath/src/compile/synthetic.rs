//! Made-up rule sets for benches and size tests.

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use podwire_core::wire::protocol;

use super::rule::{AddressSet, Rule};

/// A splitmix64 sequence: the same numbers for the same seed, everywhere.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// Distinct rules, the way policies of a cluster look: a CIDR of the other side within 10.0.0.0/8 or, one in
/// four, within fd00::/16, and one of a hundred TCP or UDP destination ports. The same `seed` gives the same
/// rules.
pub fn synthetic(count: usize, seed: u64) -> Vec<Rule> {
    let mut numbers = Numbers(seed);
    (0..count).map(|index| rule(index as u32, &mut numbers)).collect()
}

fn rule(index: u32, numbers: &mut Numbers) -> Rule {
    // Multiplied by an odd number, distinct indexes stay distinct in their 24 bits.
    let host = index.wrapping_mul(0x9e37_79b1) & 0x00ff_ffff;
    let cidr = if numbers.below(4) == 0 {
        let address = 0xfd00_u128 << 112 | u128::from(host) << 64 | u128::from(numbers.below(4));
        let len = if numbers.below(2) == 0 { 128 } else { 64 };
        Ipv6Net::new(Ipv6Addr::from(address), len).map(IpNet::from)
    } else {
        let len = [32, 32, 28, 24][numbers.below(4) as usize];
        Ipv4Net::new(Ipv4Addr::from(0x0a00_0000 | host), len).map(IpNet::from)
    };
    let port = 1 + numbers.below(100) as u16 * 97;
    let number = if numbers.below(3) == 0 { protocol::UDP } else { protocol::TCP };
    Rule {
        protocol: Some(number),
        destination_ports: vec![port..=port],
        peer: Some(AddressSet { cidrs: cidr.into_iter().collect(), except: Vec::new() }),
        ..Rule::default()
    }
}
