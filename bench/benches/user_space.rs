//! The parts that run in user space, or in both: encapsulation, parsing, checksums, rule compilation,
//! classification. `cargo xtask bench --bench user_space`.
#![allow(missing_docs, clippy::expect_used, reason = "criterion's macros, and a bench fails by panicking")]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use podwire_bench::tcp_frame;
use podwire_core::abi::{Direction, Generation};
use podwire_core::stage::{self, Tables};
use podwire_core::wire::checksum;
use podwire_core::wire::encap::{
    Encapsulation, OUTER_MAX, OuterAddresses, OuterTemplate, PerPacket, Tunnel, encapsulate, flow_hash,
};
use podwire_core::wire::ethernet;
use podwire_datapath::compile::tables::MemoryTables;
use podwire_datapath::compile::{EndpointRules, Policy, compile, synthetic};

fn template() -> OuterTemplate {
    let addresses = OuterAddresses::new([192, 0, 2, 1].into(), [192, 0, 2, 9].into()).expect("one family");
    OuterTemplate::new(&Encapsulation::new(addresses, Tunnel::Vxlan { vni: 1, port: 4789 }))
        .expect("in range")
}

fn encapsulation(criterion: &mut Criterion) {
    let template = template();
    let inner = tcp_frame([10, 20, 0, 9], 80, 1514);
    let packet =
        PerPacket { inner_len: inner.0.len() as u32, flow_hash: 7, ip_id: 9, ..PerPacket::default() };
    let mut headers = [0; OUTER_MAX];
    criterion.bench_function("fill VXLAN headers", |bench| {
        bench.iter(|| black_box(&template).fill(black_box(&packet), &mut headers));
    });
    let link = ethernet::Header::default();
    let mut out = vec![0; 2048];
    criterion.bench_function("encapsulate 1514 bytes", |bench| {
        bench.iter(|| encapsulate(black_box(&template), &packet, &link, &inner.0, &mut out));
    });
}

fn parsing(criterion: &mut Criterion) {
    let frame = tcp_frame([10, 20, 0, 9], 80, 1514);
    criterion.bench_function("parse TCP", |bench| bench.iter(|| stage::parse(black_box(&frame))));
    let facts = stage::parse(&frame);
    criterion.bench_function("flow hash", |bench| {
        bench.iter(|| {
            flow_hash(&podwire_core::wire::encap::Flow {
                source: [black_box(facts.source.high), 0],
                destination: [facts.destination.high, 0],
                source_port: facts.source_port,
                destination_port: facts.destination_port,
                protocol: facts.protocol,
            })
        });
    });
    let mut group = criterion.benchmark_group("checksum");
    for len in [64, 1514, 65535] {
        let bytes = vec![0x5a; len];
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_with_input(BenchmarkId::from_parameter(len), &bytes, |bench, bytes| {
            bench.iter(|| checksum::full(black_box(bytes)));
        });
    }
}

fn rules(criterion: &mut Criterion) {
    for count in [100, 1000, 10_000] {
        let rules = synthetic(count, 1);
        let endpoint = EndpointRules { egress: vec![Policy::mirror(0, rules)], ..EndpointRules::default() };
        let endpoints = [endpoint];
        let mut group = criterion.benchmark_group("rules");
        group.sample_size(10);
        group.bench_with_input(BenchmarkId::new("compile", count), &endpoints, |bench, endpoints| {
            bench.iter(|| compile(black_box(endpoints)).expect("they fit"));
        });
        let mut tables = MemoryTables::new();
        tables.write(compile(&endpoints).expect("they fit").relocate(0));
        tables.set_endpoint_slot(1, 0);
        let ruleset =
            tables.endpoint(Generation(0), 0).expect("an endpoint").rulesets[Direction::Egress as usize] - 1;
        let facts = stage::parse(&tcp_frame([10, 20, 0, 9], 80, 64));
        group.bench_with_input(BenchmarkId::new("classify", count), &facts, |bench, facts| {
            bench.iter(|| stage::classify(&tables, ruleset, Direction::Egress, black_box(facts)));
        });
    }
}

criterion_group!(benches, encapsulation, parsing, rules);
criterion_main!(benches);
