//! Bytes of a plan (memory, downloads, disk, weights on the network) and its training speed. All are the operator's own
//! forecasts ([`grpo_operator_core::estimate::forecast`]).

use super::made::Made;
use super::report::{DiskRow, DownloadRow, MemoryRow, Report, SpeedRow, WeightsRow};
use grpo_crds::inference_pool::CacheMedium;
use grpo_crds::{GrpoRun, InferencePool};
use grpo_memory::{Gpu, in_words};
use grpo_operator_core::estimate::forecast;
use grpo_operator_core::names::{RUN, store_claim};
use grpo_operator_core::quantity::thousandths;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;
use std::collections::BTreeMap;

/// Adds them to a report. `gpu` is the bytes of a GPU and `product` its name, if nodes report them.
pub fn add(report: &mut Report, made: &Made, gpu: Option<u64>, product: Option<&str>) {
    for run in &made.runs {
        report.memory.extend(trainer(run, gpu));
        if let Some((row, warning)) = host(run) {
            report.memory.push(row);
            report.warnings.extend(warning);
        }
        report
            .speed
            .extend(product.and_then(|product| speed(run, gpu, product)));
        report.downloads.extend(download_of_run(run));
        report.disk.extend(store(run));
        report.weights.extend(weights(run, &made.inference));
        // Several runs of one pool share its volumes.
        let cache = weights_cache(run, &made.inference);
        let is_new = |row: &DiskRow| {
            report
                .disk
                .iter()
                .all(|other| (&other.of, &other.place) != (&row.of, &row.place))
        };
        let cache = cache.filter(is_new);
        report.disk.extend(cache);
    }
    for pool in &made.inference {
        let row = engine(pool, gpu);
        report
            .problems
            .extend(row.as_ref().and_then(|row| too_large(row, pool)));
        report.memory.extend(row);
        if !pool.labels().contains_key(RUN) {
            report.downloads.extend(download_of_pool(pool));
        }
        report.disk.extend(cache(pool));
    }
    report.warnings.extend(report.disk.iter().filter_map(too_small));
}

/// One in how many bytes of a version its delta has, on the safe side: 2 % were measured (`make bench-delta`).
const DELTA: u64 = 20;

fn too_small(row: &DiskRow) -> Option<String> {
    let has = row.has_bytes.filter(|has| *has < row.bytes)?;
    Some(format!(
        "{}: {} has {}, and at least {} are written to it; ask for more",
        row.of,
        row.place,
        in_words(has),
        in_words(row.bytes)
    ))
}

fn name(run: &GrpoRun) -> String {
    format!("GrpoRun {}", run.name_any())
}

fn pool_name(pool: &InferencePool) -> String {
    format!("InferencePool {}", pool.name_any())
}

const NO_SIZE: &str = "not known: the name of the model says no size, such as 8B";

fn billions(parameters: u64) -> String {
    format!("{:.1} billion parameters", parameters as f64 / 1e9)
}

fn trainer(run: &GrpoRun, gpu: Option<u64>) -> Option<MemoryRow> {
    let spec = &run.spec;
    spec.trainer.as_ref().filter(|_| spec.mode.needs_trainer())?;
    let model = forecast::model(&spec.model.source());
    let (Some(memory), Some(model)) = (forecast::trainer(spec), model) else {
        return Some(MemoryRow {
            of: name(run),
            each: "each trainer rank".to_owned(),
            bytes: None,
            has_bytes: gpu,
            parts: Vec::new(),
            notes: vec![NO_SIZE.to_owned()],
        });
    };
    let mut parts: Vec<(String, u64)> = memory
        .estimate
        .parts()
        .map(|(part, bytes)| (part.to_owned(), bytes))
        .into();
    if memory.besides > 0 {
        parts.push(("CUDA and NCCL".to_owned(), memory.besides));
    }
    parts.retain(|(_, bytes)| *bytes > 0);
    let place = if memory.on_gpus { "GPUs" } else { "pods without GPUs" };
    let mut notes = vec![format!(
        "{} (the name {}), state divided by {}, {} tokens at a time; fullest: {}",
        billions(model.parameters),
        model.name,
        memory.shards,
        memory.tokens,
        memory.estimate.moment
    )];
    notes.extend(memory.longer.map(|longest| {
        format!(
            "a row may have {longest} tokens, a pack has {} (trainer.maxTokensPerGpu): a longer row is computed alone, or with rows that are its beginning",
            memory.pack
        )
    }));
    Some(MemoryRow {
        of: name(run),
        each: format!("each of {} trainer ranks, on {place}", memory.ranks),
        bytes: Some(memory.total()),
        has_bytes: gpu.filter(|_| memory.on_gpus),
        parts,
        notes,
    })
}

/// The part of a trainer pod's own memory for tensors, and a warning if `trainer.resources` has less.
fn host(run: &GrpoRun) -> Option<(MemoryRow, Option<String>)> {
    let host = forecast::trainer(&run.spec)?.host?;
    let trainer = run.spec.trainer.as_ref()?;
    // The operator's own request, of a pod without one, is tiny and limits nothing.
    let resources = trainer.resources.as_ref();
    let memory = |amounts: &Option<BTreeMap<String, Quantity>>| amounts.as_ref()?.get("memory").and_then(bytes);
    let limit = resources.and_then(|resources| memory(&resources.limits));
    let request = resources.and_then(|resources| memory(&resources.requests));
    let amount = |bytes: Option<u64>| bytes.map_or_else(|| "none".to_owned(), in_words);
    let note = format!(
        "tensors alone: libraries, rows of a batch and /dev/shm come on top. Limit in trainer.resources: {}, request: {}",
        amount(limit),
        amount(request)
    );
    let mut parts: Vec<(String, u64)> = host.parts().map(|(part, bytes)| (part.to_owned(), bytes)).into();
    parts.retain(|(_, bytes)| *bytes > 0);
    let has = limit.or(request);
    let warning = has.filter(|has| *has < host.total()).map(|has| {
        format!(
            "{}: tensors of a trainer pod take {} of its own memory, and its memory {} is {}; raise trainer.resources, or use more nodes (trainer.nodes) or less trainer.offload",
            name(run),
            in_words(host.total()),
            if limit.is_some() { "limit" } else { "request" },
            in_words(has)
        )
    });
    let row = MemoryRow {
        of: name(run),
        each: format!("each of {} trainer pods, beside its GPUs", trainer.nodes),
        bytes: Some(host.total()),
        has_bytes: has,
        parts,
        notes: vec![note],
    };
    Some((row, warning))
}

fn speed(run: &GrpoRun, bytes: Option<u64>, product: &str) -> Option<SpeedRow> {
    let found = forecast::trainer_speed(&run.spec, &Gpu::named(product)?, bytes)?;
    let trainer = run.spec.trainer.as_ref()?;
    // Three digits: the arithmetic is not more precise.
    let step = 10f64.powf(found.tokens_per_second.log10().floor() - 2.0).max(1.0);
    Some(SpeedRow {
        of: name(run),
        gpu: product.to_owned(),
        gpus: trainer.nodes * trainer.gpus_per_node,
        row: found.row,
        tokens_per_second: ((found.tokens_per_second / step).round() * step) as u64,
        kept: found.kept,
    })
}

fn engine(pool: &InferencePool, gpu: Option<u64>) -> Option<MemoryRow> {
    let spec = &pool.spec;
    if spec.engine.external.is_some() || spec.replicas == 0 {
        return None;
    }
    let each = match spec.engine.gpus_per_node() {
        0 => format!("each of {} {} engines, without GPUs", spec.replicas, spec.engine.name()),
        gpus => format!(
            "each GPU of {} {} engines with {}",
            spec.replicas,
            spec.engine.name(),
            gpus * spec.engine.nodes()
        ),
    };
    let Some(memory) = forecast::engine(&spec.model, &spec.engine) else {
        return Some(MemoryRow {
            of: pool_name(pool),
            each,
            bytes: None,
            has_bytes: gpu,
            parts: Vec::new(),
            notes: vec![NO_SIZE.to_owned()],
        });
    };
    let gpu = gpu.filter(|_| memory.gpus > 0);
    let mut notes = vec![format!(
        "a token takes {} in the cache of keys and values",
        in_words(memory.share.token)
    )];
    if let (Some(gpu), Some(fraction)) = (gpu, memory.fraction) {
        let taken = (gpu as f64 * fraction) as u64;
        notes.push(format!(
            "{fraction} of a GPU is {}: the cache holds about {} tokens, less what activations take",
            in_words(taken),
            memory.share.tokens(taken)
        ));
    }
    if spec
        .engine
        .vllm
        .as_ref()
        .is_some_and(|vllm| vllm.quantization.is_some())
        || spec
            .engine
            .sglang
            .as_ref()
            .is_some_and(|sglang| sglang.quantization.is_some())
    {
        notes.push("counted in bf16: the quantization takes less".to_owned());
    }
    Some(MemoryRow {
        of: pool_name(pool),
        each,
        bytes: Some(memory.share.weights),
        has_bytes: gpu,
        parts: vec![("weights".to_owned(), memory.share.weights)],
        notes,
    })
}

/// Weights that leave no room for a cache.
fn too_large(row: &MemoryRow, pool: &InferencePool) -> Option<String> {
    let fraction = forecast::engine(&pool.spec.model, &pool.spec.engine)?
        .fraction
        .unwrap_or(1.0);
    let (bytes, has) = (row.bytes?, row.has_bytes?);
    let quantized = row.notes.iter().any(|note| note.contains("quantization"));
    let taken = (has as f64 * fraction) as u64;
    (bytes >= taken && !quantized).then(|| {
        format!(
            "{}: the weights take {} of a GPU, and weights and cache may take {} together; raise tensorParallel, or use GPUs with more memory",
            row.of,
            in_words(bytes),
            in_words(taken)
        )
    })
}

fn download_of_run(run: &GrpoRun) -> Option<DownloadRow> {
    let model = forecast::model(&run.spec.model.source())?;
    let downloads = forecast::downloads_of_run(run)?;
    Some(DownloadRow {
        of: name(run),
        what: format!("model {}", model.name),
        bytes: model.bytes,
        times: downloads.times,
        at_most: downloads.at_most,
    })
}

fn download_of_pool(pool: &InferencePool) -> Option<DownloadRow> {
    let model = forecast::model(&pool.spec.model)?;
    let downloads = forecast::downloads_of_pool(&pool.spec)?;
    Some(DownloadRow {
        of: pool_name(pool),
        what: format!("model {}", model.name),
        bytes: model.bytes,
        times: downloads.times,
        at_most: downloads.at_most,
    })
}

fn store(run: &GrpoRun) -> Option<DiskRow> {
    let store = &run.spec.store;
    let place = match (&store.persistent_volume_claim, &store.object_store) {
        (Some(claim), _) => format!("claim {}", claim.claim_name),
        (None, Some(bucket)) => bucket.url.clone(),
        (None, None) => format!("claim {}", store_claim(&run.name_any())),
    };
    let template = store.volume_claim_template.as_ref();
    let has_bytes = template.and_then(|template| bytes(&Quantity(template.resources.requests.storage.clone())));
    let mut parts = Vec::new();
    if let Some(written) = forecast::store(&run.spec) {
        parts.push((
            format!("{} versions of the weights", written.versions),
            written.version * written.versions,
        ));
        parts.push((
            format!("{} checkpoints", written.checkpoints),
            written.checkpoint * written.checkpoints,
        ));
    }
    let model = forecast::model(&run.spec.model.source());
    if let (Some(model), Some(downloads)) = (model, forecast::downloads_of_run(run))
        && downloads.in_store
    {
        parts.push(("the downloaded model".to_owned(), model.bytes));
    }
    Some(DiskRow {
        of: name(run),
        place,
        bytes: parts.iter().map(|(_, bytes)| bytes).sum(),
        parts,
        has_bytes,
    })
}

/// The scratch volume or the claim for a downloaded model.
fn cache(pool: &InferencePool) -> Option<DiskRow> {
    let spec = &pool.spec;
    forecast::downloads_of_pool(spec)?;
    let model = forecast::model(&spec.model)?;
    let cache = spec.model_cache.clone().unwrap_or_default();
    let place = match (&cache.claim_name, &cache.host_path) {
        (Some(claim), _) => format!("claim {claim}"),
        (None, Some(path)) => format!("{path} of each node"),
        (None, None) => "scratch volume of each pod".to_owned(),
    };
    Some(DiskRow {
        of: pool_name(pool),
        place,
        bytes: model.bytes,
        parts: vec![("the downloaded model".to_owned(), model.bytes)],
        has_bytes: cache.size_limit.as_ref().and_then(bytes),
    })
}

fn bytes(quantity: &Quantity) -> Option<u64> {
    u64::try_from(thousandths(quantity)? / 1000).ok()
}

/// The pool that a run samples from, if its replicas pull the run's weights.
fn updated_pool<'a>(run: &GrpoRun, pools: &'a [InferencePool]) -> Option<&'a InferencePool> {
    let named = run
        .spec
        .inference
        .pool_ref
        .as_ref()
        .map_or_else(|| run.name_any(), |pool| pool.name.clone());
    let pool = pools.iter().find(|pool| pool.name_any() == named)?;
    forecast::updates_engines(run.spec.mode, &pool.spec.engine).then_some(pool)
}

/// Each iteration publishes one version, which the trainer writes and each replica pulls.
fn weights(run: &GrpoRun, pools: &[InferencePool]) -> Option<WeightsRow> {
    let version = forecast::store(&run.spec)?.version;
    let pulls = updated_pool(run, pools)?.spec.replicas;
    Some(WeightsRow {
        of: name(run),
        version_bytes: version,
        pulls,
        iteration_bytes: version * u64::from(pulls + 1),
    })
}

/// The scratch volume of each replica for the serving version and the next.
fn weights_cache(run: &GrpoRun, pools: &[InferencePool]) -> Option<DiskRow> {
    // The agent of an external engine keeps no versions.
    let pool = updated_pool(run, pools).filter(|pool| pool.spec.engine.external.is_none())?;
    let version = forecast::store(&run.spec)?.version;
    let cache = pool.spec.weights_cache.as_ref();
    let parts = vec![
        ("two versions of the weights".to_owned(), 2 * version),
        ("their deltas, about".to_owned(), 2 * version / DELTA),
    ];
    Some(DiskRow {
        of: pool_name(pool),
        place: match cache.and_then(|cache| cache.medium) {
            Some(CacheMedium::Memory) => "memory of each replica's node",
            _ => "scratch volume of each replica",
        }
        .to_owned(),
        bytes: parts.iter().map(|(_, bytes)| bytes).sum(),
        parts,
        has_bytes: cache.and_then(|cache| bytes(&cache.size_limit)),
    })
}
