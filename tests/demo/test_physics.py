"""The simulated boxes behave like boxes: heat lags, caps hold, throttling has a cause."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from engine.telemetry import throttle
from flightdeck.demo.boxes import HARRIER, KESTREL, OSPREY, PROFILES, BoxProfile
from flightdeck.demo.physics import BoxModel, Load
from flightdeck.demo.sensors import SimulatedSource, facts, past_hour

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


def full(profile: BoxProfile) -> Load:
    return Load(cores=profile.cores, gpus=(1.0,) * len(profile.gpus))


@pytest.mark.parametrize("profile", PROFILES, ids=lambda p: p.name)
def test_load_warms_slowly_and_idle_cools(profile: BoxProfile) -> None:
    model = BoxModel(profile)
    cold = model.step(2.0, Load()).gpus[0].temp_c
    soon = [model.step(2.0, full(profile)) for _ in range(3)][-1].gpus[0].temp_c
    late = [model.step(2.0, full(profile)) for _ in range(200)][-1].gpus[0].temp_c
    cooled = [model.step(2.0, Load()) for _ in range(300)][-1].gpus[0].temp_c
    assert cold < soon < late, "heat needs minutes, not seconds"
    assert soon < cold + 0.6 * (late - cold)
    assert cooled < late - 15


@pytest.mark.parametrize("profile", PROFILES, ids=lambda p: p.name)
def test_power_stays_under_the_cap_and_temperature_under_shutdown(profile: BoxProfile) -> None:
    model = BoxModel(profile)
    for _ in range(1500):
        reading = model.step(2.0, full(profile))
        for gpu, card in zip(profile.gpus, reading.gpus, strict=True):
            assert card.power_w <= gpu.cap_w * 1.02
            assert card.temp_c < gpu.shutdown_c
        assert reading.cpu_temp_c < profile.cpu_limit_c + 8


def test_a_hot_gpu_gives_up_clock_for_a_reason() -> None:
    model = BoxModel(KESTREL)
    readings = [model.step(2.0, full(KESTREL)).gpus[0] for _ in range(900)]
    held = [r for r in readings if r.sw_thermal_ms >= 1000]
    free = [r for r in readings[:20] if not r.sw_thermal_ms]
    assert held, "full load must end in heat on this box"
    assert max(r.clock_mhz for r in held) < max(r.clock_mhz for r in free)


def test_the_same_seed_gives_the_same_hour() -> None:
    first, _ = past_hour(OSPREY, NOW)
    again, _ = past_hour(OSPREY, NOW)
    assert [s.payload() for s in first] == [s.payload() for s in again]


def test_the_hour_is_full_and_tells_a_story() -> None:
    for profile in PROFILES:
        samples, _ = past_hour(profile, NOW)
        assert samples[-1].at == NOW and (NOW - samples[0].at).total_seconds() > 3590
        temps = [s.gpus[0].temp_c or 0 for s in samples]
        assert max(temps) - min(temps) > 25
    kestrel, _ = past_hour(KESTREL, NOW)
    letters = {letter for s in kestrel for letter in throttle.letters(s.gpus[0].throttle_mask)}
    assert {"P", "T", "B"} <= letters


def test_what_the_hardware_does_not_offer_is_null_with_a_reason() -> None:
    sample = SimulatedSource(HARRIER, lambda: full(HARRIER)).sample(2.0)
    gpu = sample.gpus[0]
    assert (gpu.sm_mhz, gpu.throttle_mask, gpu.sw_power_ms, gpu.brakes) == (None, None, None, None)
    assert sample.throttle_index is None and sample.power_ms is None
    assert sample.sensors is not None and "driver" in sample.sensors["gpu_absent"]["0"]["sm_mhz"]
    unified = facts(KESTREL).gpus[0]
    assert unified.unified and unified.mem_mb is None and unified.power_limit_w is None


def test_every_simulated_box_says_that_it_is_simulated() -> None:
    assert all(facts(p).simulated and "simulated" in (facts(p).description or "") for p in PROFILES)


def test_a_source_catches_up_after_a_pause() -> None:
    seconds = [0.0]
    source = SimulatedSource(KESTREL, lambda: full(KESTREL), clock=lambda: seconds[0])
    before = source.sample(2.0).gpus[0].temp_c or 0
    seconds[0] = 120.0
    after = source.sample(2.0).gpus[0].temp_c or 0
    assert after > before + 20, "two minutes of load passed while nobody looked"


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_a_simulated_box_names_what_a_real_one_does(profile: BoxProfile) -> None:
    """And all of it fits into a notification. Whose the memory is, only one vendor's driver tells."""
    source, sample = SimulatedSource(profile, lambda: full(profile)), None
    for _ in range(3):
        sample = source.sample(60.0)
    assert sample is not None and sample.sensors is not None
    assert {"zones", "net", "disks", "mounts", "pressure", "gpus"} <= sample.sensors.keys()
    assert ("processes" in sample.sensors) == any(gpu.vendor == "nvidia" for gpu in profile.gpus)
    assert ("fans" in sample.sensors) != ("fan_max_rpm" in sample.sensors["absent"])
    assert '"sensors":' in sample.payload()
