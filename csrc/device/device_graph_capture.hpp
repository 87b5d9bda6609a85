// device_graph_capture.hpp: capture calls of DeviceCapture that concern CUDA graphs.
//
// Threads: as for DeviceCapture.
#pragma once

#include <span>

#include "capture/capture.hpp"
#include "device/device_engine.hpp"

namespace tdcore {

/// Adds the tensors to the graph that the stream is being captured into.
CaptureResult capture_into_graph(DeviceEngine& engine, Ring& main, std::span<const TensorRequest> requests,
                                 std::uint32_t call, StreamHandle stream);

/// Notes tensors that are captured outside of a graph, so that collect_graphs() leaves them out.
void note_captured(DeviceEngine& engine, std::span<const TensorRequest> requests) noexcept;

/// DeviceCapture::collect_graphs().
CaptureResult collect_graphs(DeviceEngine& engine, Ring& main, const StepContext& step_context,
                             StreamHandle stream, RoomWaiter waiter);

}  // namespace tdcore
