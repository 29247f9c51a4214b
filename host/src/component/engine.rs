//! The Wasm runtime's settings.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tokio::sync::Semaphore;
use wasmtime::{Config, Enabled, Engine, InstanceAllocationStrategy, PoolingAllocationConfig};

/// The largest memory image of a snapshot that is mapped copy-on-write even though it is sparse.
/// wasmtime's own limit is 16 MiB, less than one tokenizer; above it each instance would copy.
const DENSE_IMAGE_BYTES: u64 = 4 << 30;

/// An epoch: how often a guest that computes gives way to other work on its thread.
pub const TICK: Duration = Duration::from_millis(10);

/// What of an instance's memory stays mapped when it ends, for the next one: what it has written is
/// overwritten by what the snapshot has there. A completion writes less than a MiB. So much stays of as many
/// instances as there were at a time.
const KEPT_BYTES: usize = 2 << 20;

/// Instances at a time beyond requests that pass the gate: for those that always do.
const SPARE_INSTANCES: u32 = 64;

/// What a component may be made of; each part takes memory from the pools.
const MODULES: u32 = 16;
const MEMORIES: u32 = 2;
const TABLES: u32 = 8;

/// The Wasm runtime, and how many instances it has room for.
#[derive(Clone)]
pub struct Instances {
    /// The runtime.
    pub engine: Engine,
    /// One permit for each instance; whoever wants one more waits.
    pub room: Arc<Semaphore>,
}

/// For which CPU components are compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub enum Cpu {
    /// The machine's own.
    #[default]
    #[serde(rename = "native")]
    Native,
    /// Any of x86-64 since 2009, with SSE4.2.
    #[serde(rename = "x86-64-v2")]
    X86_64V2,
    /// Any of x86-64 since 2013, with AVX2.
    #[serde(rename = "x86-64-v3")]
    X86_64V3,
}

/// The features of the levels of x86-64 (System V ABI, "Micro-Architecture Levels"), by Cranelift's names.
const V2: [&str; 6] =
    ["has_sse3", "has_ssse3", "has_cmpxchg16b", "has_sse41", "has_sse42", "has_popcnt"];
const V3: [&str; 6] = ["has_avx", "has_avx2", "has_fma", "has_bmi1", "has_bmi2", "has_lzcnt"];

impl Cpu {
    fn apply(self, config: &mut Config) -> wasmtime::Result<()> {
        let features = match self {
            Self::Native => return Ok(()),
            Self::X86_64V2 => V2.to_vec(),
            Self::X86_64V3 => [V2, V3].concat(),
        };
        if std::env::consts::ARCH != "x86_64" {
            wasmtime::bail!("a level of x86-64 was asked for on {}", std::env::consts::ARCH);
        }
        // An explicit target is one without the features that this machine happens to have.
        config.target("x86_64-unknown-linux-gnu")?;
        for feature in features {
            // SAFETY: these are features of CPUs, which the engine checks against this one before it
            // runs anything; none changes what the code means.
            unsafe { config.cranelift_flag_enable(feature) };
        }
        Ok(())
    }
}

/// A runtime for the instances of so many requests, and the thread that counts its epochs.
pub fn new(requests_in_flight: u32, cpu: Cpu) -> wasmtime::Result<Instances> {
    let instances = requests_in_flight.saturating_add(SPARE_INSTANCES);
    // Where the kernel can't tell what an instance has written, all of that would be copied each time.
    let kept = match PoolingAllocationConfig::is_pagemap_scan_available() {
        true => KEPT_BYTES,
        false => 0,
    };
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(instances)
        .total_core_instances(instances.saturating_mul(MODULES))
        .max_core_instances_per_component(MODULES)
        .total_memories(instances.saturating_mul(MEMORIES))
        .max_memories_per_component(MEMORIES)
        .total_tables(instances.saturating_mul(TABLES))
        .max_tables_per_component(TABLES)
        .total_stacks(instances.saturating_mul(2))
        .linear_memory_keep_resident(kept)
        .table_keep_resident(kept.min(1 << 16))
        .pagemap_scan(Enabled::Auto);
    let mut config = Config::new();
    config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    config.wasm_component_model(true);
    config.wasm_component_model_async(true);
    config.memory_init_cow(true);
    config.memory_guaranteed_dense_image_size(DENSE_IMAGE_BYTES);
    config.epoch_interruption(true);
    cpu.apply(&mut config)?;
    let engine = Engine::new(&config)?;
    let weak = engine.weak();
    std::thread::Builder::new().name("epochs".into()).spawn(move || {
        while let Some(engine) = weak.upgrade() {
            engine.increment_epoch();
            drop(engine);
            std::thread::sleep(TICK);
        }
    })?;
    Ok(Instances { engine, room: Arc::new(Semaphore::new(instances as usize)) })
}
