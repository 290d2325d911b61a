// A device plugin without hardware, for tests/judges/cluster: it offers the devices with the given ids until SIGTERM.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

var (
	resource = flag.String("resource", "nvidia.com/gpu", "name of the resource; the arguments are the ids of its devices")
	// The kubelet has no option for it.
	folder = flag.String("folder", "/var/lib/kubelet/device-plugins", "the folder of the kubelet's socket")
)

type plugin struct {
	api.UnimplementedDevicePluginServer
	stopped <-chan struct{}
}

func (plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

func (p plugin) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	var devices []*api.Device
	for _, id := range flag.Args() {
		devices = append(devices, &api.Device{ID: id, Health: api.Healthy})
	}
	if err := stream.Send(&api.ListAndWatchResponse{Devices: devices}); err != nil {
		return err
	}
	select {
	case <-p.stopped:
	case <-stream.Context().Done():
	}
	return nil
}

func (plugin) Allocate(_ context.Context, asked *api.AllocateRequest) (*api.AllocateResponse, error) {
	answer := &api.AllocateResponse{}
	for range asked.ContainerRequests {
		answer.ContainerResponses = append(answer.ContainerResponses, &api.ContainerAllocateResponse{})
	}
	return answer, nil
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	const endpoint = "judge.sock"
	listener, err := net.Listen("unix", filepath.Join(*folder, endpoint))
	check(err)
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, plugin{stopped: ctx.Done()})
	go func() { check(server.Serve(listener)) }()
	kubelet, err := grpc.NewClient("unix:"+filepath.Join(*folder, "kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(err)
	_, err = api.NewRegistrationClient(kubelet).Register(ctx, &api.RegisterRequest{Version: api.Version, Endpoint: endpoint, ResourceName: *resource})
	check(err)
	<-ctx.Done()
	server.Stop()
}
