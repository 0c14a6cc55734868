// Rank of a gloo job over gloo's transport for ibverbs.
//
//     gloo_peer RANK SIZE FOLDER ROUNDS
//
// Ranks meet by files in FOLDER. In each round the results of all operations are compared. ROUNDS 0: broadcasts without end.

#include <gloo/allgather_ring.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier_all_to_all.h>
#include <gloo/broadcast_one_to_all.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/transport/ibverbs/device.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace {

using Number = uint64_t;
using Context = std::shared_ptr<gloo::Context>;

constexpr size_t LENGTHS[] = {4, 1000, 100'000};
constexpr size_t LONG = 8 << 20;

// Numbers that a rank begins a round with.
Number own(int rank, int round, size_t at) {
    return (Number(rank) + 1) * 0x9e3779b97f4a7c15 + Number(round) * 1'000'003 + at;
}

// A barrier that is over when its sends are complete, too: only then may their buffers go.
struct Barrier : gloo::BarrierAllToAll {
    using gloo::BarrierAllToAll::BarrierAllToAll;

    void run() {
        gloo::BarrierAllToAll::run();
        for (auto& buffer : sendBuffers_) buffer->waitSend();
    }
};

// A collective operation, over connections of its own.
struct Operation {
    std::string name;
    std::vector<Number> input, output;
    std::unique_ptr<gloo::Algorithm> algorithm;
    std::function<Number(int round, size_t at)> expected;

    bool in_place() const { return output.empty(); }
};

struct Job {
    int rank, size;
    std::shared_ptr<gloo::transport::Device> device;
    gloo::rendezvous::FileStore files;
    std::vector<std::unique_ptr<Operation>> operations;

    Job(int rank, int size, const char* folder)
        : rank(rank), size(size), device(gloo::transport::ibverbs::CreateDevice({"urxe0", 1, 1})), files(folder) {}

    Context connect(const std::string& name) {
        gloo::rendezvous::PrefixStore store(name, files);
        auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
        context->connectFullMesh(store, device);
        return context;
    }

    Operation& add(const std::string& name, size_t input, size_t output, std::function<Number(int, size_t)> expected) {
        operations.push_back(std::make_unique<Operation>());
        Operation& added = *operations.back();
        added.name = name + "-" + std::to_string(input);
        added.input.resize(input);
        added.output.resize(output);
        added.expected = expected;
        return added;
    }

    template <class Allreduce> void add_allreduce(const std::string& name, size_t length) {
        Operation& added = add(name, length, 0, [this](int round, size_t at) {
            Number sum = 0;
            for (int other = 0; other < size; ++other) sum += own(other, round, at);
            return sum;
        });
        std::vector<Number*> data{added.input.data()};
        added.algorithm = std::make_unique<Allreduce>(connect(added.name), data, int(length));
    }

    void add_all(size_t length) {
        add_allreduce<gloo::AllreduceRing<Number>>("ring", length);
        add_allreduce<gloo::AllreduceRingChunked<Number>>("chunked", length);
        add_allreduce<gloo::AllreduceHalvingDoubling<Number>>("halving", length);
        add_broadcast(length);
        Operation& gathered = add("allgather", length, length * size, [length](int round, size_t at) {
            return own(int(at / length), round, at % length);
        });
        std::vector<const Number*> data{gathered.input.data()};
        using Allgather = gloo::AllgatherRing<Number>;
        gathered.algorithm = std::make_unique<Allgather>(connect(gathered.name), data, gathered.output.data(), int(length));
    }

    Operation& add_broadcast(size_t length) {
        Operation& added = add("broadcast", length, 0, [](int round, size_t at) { return own(0, round, at); });
        std::vector<Number*> data{added.input.data()};
        added.algorithm = std::make_unique<gloo::BroadcastOneToAll<Number>>(connect(added.name), data, int(length));
        return added;
    }

    void compare(Operation& operation, int round) {
        for (size_t at = 0; at < operation.input.size(); ++at) operation.input[at] = own(rank, round, at);
        operation.algorithm->run();
        const std::vector<Number>& got = operation.in_place() ? operation.input : operation.output;
        for (size_t at = 0; at < got.size(); ++at) {
            if (got[at] == operation.expected(round, at)) continue;
            std::printf("different: %s, round %d, number %zu\n", operation.name.c_str(), round, at);
            std::exit(1);
        }
    }
};

}  // namespace

int main(int argc, char** argv) try {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    if (argc != 5) return 2;
    Job job(std::atoi(argv[1]), std::atoi(argv[2]), argv[3]);
    const int rounds = std::atoi(argv[4]);
    if (rounds == 0) {
        Operation& broadcast = job.add_broadcast(LONG);
        for (int done = 1;; ++done) {
            broadcast.algorithm->run();
            std::printf("done %d\n", done);
        }
    }
    for (size_t length : LENGTHS) job.add_all(length);
    // What a rank begins with is in the memory that the others' last results come from.
    Barrier barrier(job.connect("barrier"));
    for (int round = 0; round < rounds; ++round) {
        for (auto& operation : job.operations) {
            job.compare(*operation, round);
            barrier.run();
        }
    }
    std::printf("compared %zu\n", rounds * job.operations.size());
    // No rank takes its connections away while another still waits for an ACK.
    std::vector<std::string> ends;
    for (int other = 0; other < job.size; ++other) ends.push_back("end-" + std::to_string(other));
    job.files.set(ends[job.rank], {1});
    job.files.wait(ends);
    return 0;
} catch (const std::exception& error) {
    std::printf("failed: %s\n", error.what());
    return 1;
}
