# An image in which every program finds urxe0, without privileges or a device of the host:
#
#     docker build -t urxe .
#     docker run --rm urxe ibv_devinfo
FROM rust:1-bookworm AS build
COPY . /src
RUN make --directory=/src deb

FROM debian:bookworm-slim
COPY --from=build /src/target/packages/*.deb /tmp/
RUN apt-get update \
    && apt-get install -y --no-install-recommends /tmp/urxe_*.deb ibverbs-utils perftest \
    && rm -rf /var/lib/apt/lists/* /tmp/urxe_*.deb
USER nobody
ENTRYPOINT ["urxe", "run", "--"]
CMD ["ibv_devinfo"]
