//! Files read back by the reader of the same crate; tests on namespaces read them with tshark.
#![allow(clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result};
use pcap_file::pcapng::{Block, PcapNgReader};
use podwire_core::wire::erspan::Direction;

use super::{Compression, Files, Pcapng, Rotation};
use crate::collect::{Account, Background, Frame, Key, Kind, Payload, Session, Sink};

fn session(number: u64) -> Session {
    let (source, destination) = ([192, 0, 2, 1].into(), [192, 0, 2, 9].into());
    let key = Key { source, destination, kind: Kind::ErspanIII, id: Some(number as u32) };
    Session { number, key, since: 1_700_000_000_123_456_789 }
}

fn write(files: Files, compression: Compression, frames: u64) -> Result<()> {
    let mut sink = Background::start("file", Pcapng::create(files, compression)?)?;
    for number in 0..frames {
        let data = vec![number as u8; 60 + number as usize % 1000];
        let frame = Frame {
            time: 1_700_000_000_000_000_000 + number,
            sequence: Some(number as u32),
            direction: (number.is_multiple_of(2)).then_some(Direction::Egress),
            truncated: false,
            payload: Payload::Borrowed(&data),
        };
        sink.frame(&session(number % 3), &frame);
    }
    for number in 0..3 {
        let account = Account { frames: frames / 3 + 5, ..Account::default() };
        sink.account(&session(number), &account);
        sink.end(&session(number));
    }
    sink.finish()?;
    assert_eq!(sink.losses().total(), 0);
    Ok(())
}

/// Frames of a file, after checking each against the number in it.
fn read(path: &Path, compression: Compression) -> Result<Vec<u64>> {
    let mut bytes = Vec::new();
    let file = File::open(path).with_context(|| path.display().to_string())?;
    match compression {
        Compression::None => (&file).read_to_end(&mut bytes)?,
        Compression::Gzip => flate2::read::GzDecoder::new(file).read_to_end(&mut bytes)?,
        Compression::Zstd => zstd::Decoder::new(file)?.read_to_end(&mut bytes)?,
    };
    let mut reader = PcapNgReader::new(bytes.as_slice())?;
    let (mut interfaces, mut frames, mut statistics) = (Vec::new(), Vec::new(), 0);
    while let Some(block) = reader.next_block() {
        match block? {
            Block::InterfaceDescription(block) => interfaces.push(format!("{:?}", block.options)),
            Block::EnhancedPacket(packet) => {
                let number = packet.timestamp.as_nanos() as u64 - 1_700_000_000_000_000_000;
                assert_eq!(packet.data.len() as u64, 60 + number % 1000);
                assert!(packet.data.iter().all(|byte| *byte == number as u8));
                let name = format!("erspan-iii-{}", number % 3);
                assert!(interfaces[packet.interface_id as usize].contains(&name), "{interfaces:?}");
                let flags = format!("{:?}", packet.options);
                assert_eq!(flags.contains("Flags(2)"), number.is_multiple_of(2), "{flags}");
                frames.push(number);
            }
            Block::InterfaceStatistics(_) => statistics += 1,
            _ => {}
        }
    }
    assert_eq!(statistics, interfaces.len(), "{}", path.display());
    Ok(frames)
}

#[test]
fn a_file_has_every_frame_and_its_session() -> Result<()> {
    let folder = tempfile::tempdir()?;
    for compression in [Compression::None, Compression::Gzip, Compression::Zstd] {
        let path = folder.path().join("all.pcapng");
        write(Files::new(&path, Rotation::default()), compression, 3000)?;
        assert_eq!(read(&path, compression)?, (0..3000).collect::<Vec<_>>());
    }
    Ok(())
}

#[test]
fn files_are_bounded_and_each_is_whole() -> Result<()> {
    for compression in [Compression::None, Compression::Gzip, Compression::Zstd] {
        let folder = tempfile::tempdir()?;
        let rotation = Rotation { bytes: Some(100_000), ..Rotation::default() };
        write(Files::new(folder.path().join("x.pcapng"), rotation), compression, 20_000)?;
        let mut names: Vec<_> = std::fs::read_dir(folder.path())?.flatten().map(|one| one.path()).collect();
        names.sort();
        let mut all = Vec::new();
        for name in &names {
            all.extend(read(name, compression)?);
            let bytes = std::fs::metadata(name)?.len();
            assert!(compression != Compression::None || bytes < 102_000, "{bytes}");
        }
        assert_eq!(all, (0..20_000).collect::<Vec<_>>());
        assert!(compression != Compression::None || names.len() > 100, "{} files", names.len());
    }
    Ok(())
}

#[test]
fn old_files_go_and_time_ends_a_file() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let rotation = Rotation { time: Some(100), files: Some(3), ..Rotation::default() };
    write(Files::new(folder.path().join("x.pcapng"), rotation), Compression::None, 1000)?;
    let mut names: Vec<_> = std::fs::read_dir(folder.path())?.flatten().map(|one| one.path()).collect();
    names.sort();
    let frames: Vec<_> = names.iter().map(|name| read(name, Compression::None)).collect::<Result<_>>()?;
    assert_eq!(frames.iter().map(Vec::len).collect::<Vec<_>>(), [100; 3]);
    assert_eq!(frames.concat(), (700..1000).collect::<Vec<_>>());
    Ok(())
}

/// A device that is always full takes nothing: all is counted, nothing stops.
#[test]
fn a_full_disk_is_counted() -> Result<()> {
    let files = Files::new("/dev/full", Rotation::default());
    let refused = Pcapng::create(files, Compression::None).err().context("it was written")?;
    assert!(refused.to_string().contains("/dev/full"), "{refused}");
    Ok(())
}
