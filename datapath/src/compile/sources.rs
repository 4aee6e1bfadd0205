//! The sources that are a pod's own. In: MAC addresses and prefixes. Out: a trie for each kind of address, in which
//! a row that is not empty says "its own".

use ipnet::IpNet;
use podwire_core::abi::{CHUNK_WORDS, Entry};

use super::error::CompileError;
use super::ranges::Ranges;
use super::rows::{RowId, Rows};
use super::rule::Sources;
use super::trie::{Piece, Tries};

/// Bits of a key.
const KEY_BITS: u32 = 128;

/// The tries: MAC addresses, IPv4, IPv6.
///
/// # Errors
/// The tables of tries may be too small.
pub(super) fn compile(
    sources: &Sources,
    rows: &mut Rows,
    tries: &mut Tries,
    endpoint: u32,
) -> Result<[Entry; 3], CompileError> {
    let mut own = [0; CHUNK_WORDS];
    own[0] = 1;
    let own = rows.number(&own, endpoint)?;
    let mut root = |ranges: Vec<(u128, u128)>| tries.root(&pieces(ranges, own), endpoint);
    let macs = sources.macs.iter().map(|mac| block(from_bytes(mac), 48)).collect();
    let of_family = |v4: bool| {
        sources.prefixes.iter().filter(|prefix| matches!(prefix, IpNet::V4(_)) == v4).map(block_of).collect()
    };
    Ok([root(macs)?, root(of_family(true))?, root(of_family(false))?])
}

/// First and last key of a prefix.
pub(super) fn block_of(prefix: &IpNet) -> (u128, u128) {
    match prefix {
        IpNet::V4(net) => block(from_bytes(&net.network().octets()), net.prefix_len()),
        IpNet::V6(net) => block(from_bytes(&net.network().octets()), net.prefix_len()),
    }
}

fn from_bytes<const N: usize>(bytes: &[u8; N]) -> u128 {
    bytes.iter().fold(0, |value, byte| value << 8 | u128::from(*byte)) << (KEY_BITS - 8 * N as u32)
}

/// First and last key of those that begin with the first `len` bits of `key`.
fn block(key: u128, len: u8) -> (u128, u128) {
    let free = u128::MAX.checked_shr(len.into()).unwrap_or(0);
    (key & !free, key | free)
}

/// The keys in pieces: own ones and others.
fn pieces(ranges: Vec<(u128, u128)>, own: RowId) -> Vec<Piece> {
    let mut pieces = vec![Piece { start: 0, row: RowId::EMPTY }];
    for (first, last) in Ranges::new(ranges).iter() {
        if first == 0 {
            pieces.clear();
        }
        pieces.push(Piece { start: first, row: own });
        pieces.extend(last.checked_add(1).map(|start| Piece { start, row: RowId::EMPTY }));
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::{Piece, RowId, block, from_bytes, pieces};

    #[test]
    fn own_addresses_are_told_from_their_neighbours() {
        let own = RowId(1);
        let address = from_bytes(&[10, 10, 1, 5]);
        assert_eq!(address, 0x0a0a_0105 << 96);
        let (first, last) = block(address, 32);
        assert_eq!((first, last), (address, address | ((1 << 96) - 1)));
        assert_eq!(
            pieces(vec![(first, last)], own),
            [
                Piece { start: 0, row: RowId::EMPTY },
                Piece { start: first, row: own },
                Piece { start: last + 1, row: RowId::EMPTY },
            ]
        );
        assert_eq!(
            pieces(vec![block(0, 0)], own),
            [Piece { start: 0, row: own }],
            "every address is its own"
        );
    }
}
