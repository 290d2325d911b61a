// A DRA driver without hardware, for tests/judges/cluster, on Kubernetes' own library for such drivers. It publishes the pools of a JSON
// file (resourceslice.DriverResources) as ResourceSlices, again after SIGHUP, and prepares a claim by naming a CDI device for each of the
// claim's devices.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	resource "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

var (
	name       = flag.String("driver", "gpu.nvidia.com", "name of the driver")
	kubeconfig = flag.String("kubeconfig", "", "how to reach the API server")
	node       = flag.String("node", "", "name of the node")
	resources  = flag.String("resources", "", "file with the pools")
	kubelet    = flag.String("kubelet", "/var/lib/kubelet", "the kubelet's folder")
	cdi        = flag.String("cdi", "/var/run/cdi", "folder for the CDI devices")
)

type plugin struct{}

// file is where the CDI devices of a claim are.
func file(claim types.UID) string {
	return filepath.Join(*cdi, fmt.Sprintf("k8s.%s-claim_%s.json", *name, claim))
}

func prepare(claim *resource.ResourceClaim) kubeletplugin.PrepareResult {
	kind := fmt.Sprintf("k8s.%s/claim", *name)
	var written []map[string]any
	var prepared []kubeletplugin.Device
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver != *name {
			continue
		}
		own := fmt.Sprintf("%s-%s", claim.UID, result.Device)
		if result.ShareID != nil {
			own += "-" + string(*result.ShareID)
		}
		// A CDI device must change something.
		edits := map[string]any{"env": []string{"NVIDIA_VISIBLE_DEVICES=void"}}
		written = append(written, map[string]any{"name": own, "containerEdits": edits})
		// The share is left out, as NVIDIA's driver does.
		prepared = append(prepared, kubeletplugin.Device{
			Requests: []string{result.Request}, PoolName: result.Pool, DeviceName: result.Device, CDIDeviceIDs: []string{kind + "=" + own},
		})
	}
	text, err := json.Marshal(map[string]any{"cdiVersion": "0.6.0", "kind": kind, "devices": written})
	if err == nil {
		err = os.WriteFile(file(claim.UID), text, 0o644)
	}
	return kubeletplugin.PrepareResult{Devices: prepared, Err: err}
}

func (plugin) PrepareResourceClaims(_ context.Context, claims []*resource.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	done := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		done[claim.UID] = prepare(claim)
	}
	return done, nil
}

func (plugin) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	done := map[types.UID]error{}
	for _, claim := range claims {
		done[claim.UID] = nil
		if err := os.Remove(file(claim.UID)); err != nil && !os.IsNotExist(err) {
			done[claim.UID] = err
		}
	}
	return done, nil
}

func (plugin) HandleError(_ context.Context, err error, message string) {
	fmt.Fprintln(os.Stderr, message, err)
}

func (plugin) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}

func read() (read resourceslice.DriverResources) {
	text, err := os.ReadFile(*resources)
	check(err)
	check(json.Unmarshal(text, &read))
	return
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	flag.Parse()
	again := make(chan os.Signal, 1)
	signal.Notify(again, syscall.SIGHUP)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	check(err)
	client, err := kubernetes.NewForConfig(config)
	check(err)
	data := filepath.Join(*kubelet, "plugins", *name)
	check(os.MkdirAll(data, 0o750))
	check(os.MkdirAll(*cdi, 0o755))
	helper, err := kubeletplugin.Start(ctx, plugin{}, kubeletplugin.DriverName(*name), kubeletplugin.NodeName(*node),
		kubeletplugin.KubeClient(client), kubeletplugin.RegistrarDirectoryPath(filepath.Join(*kubelet, "plugins_registry")),
		kubeletplugin.PluginDataDirectoryPath(data))
	check(err)
	defer helper.Stop()
	for {
		check(helper.PublishResources(ctx, read()))
		select {
		case <-again:
		case <-ctx.Done():
			return
		}
	}
}
