// Reads the kubelet's pod-resources service, and serves recorded answers of it, for tests/judges/cluster. An answer is JSON with the names
// of the protocol's fields: {"list": ListPodResourcesResponse, "allocatable": AllocatableResourcesResponse}.
//
// usage: pod-resources read SOCKET           prints what the service answers
// usage: pod-resources serve SOCKET FILE     answers with the content of the file, which is read for each request
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

type answers struct {
	List        json.RawMessage `json:"list"`
	Allocatable json.RawMessage `json:"allocatable"`
}

type recorded struct {
	api.UnimplementedPodResourcesListerServer
	file string
}

func (r recorded) answers() (read answers, err error) {
	text, err := os.ReadFile(r.file)
	if err == nil {
		err = json.Unmarshal(text, &read)
	}
	return
}

func (r recorded) List(context.Context, *api.ListPodResourcesRequest) (*api.ListPodResourcesResponse, error) {
	all, err := r.answers()
	if err != nil {
		return nil, err
	}
	answer := &api.ListPodResourcesResponse{}
	return answer, protojson.Unmarshal(all.List, answer)
}

func (r recorded) GetAllocatableResources(context.Context, *api.AllocatableResourcesRequest) (*api.AllocatableResourcesResponse, error) {
	all, err := r.answers()
	if err != nil {
		return nil, err
	}
	answer := &api.AllocatableResourcesResponse{}
	return answer, protojson.Unmarshal(all.Allocatable, answer)
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func written(message proto.Message) json.RawMessage {
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(message)
	check(err)
	return text
}

func read(socket string) {
	connection, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(err)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	client := api.NewPodResourcesListerClient(connection)
	list, err := client.List(ctx, &api.ListPodResourcesRequest{})
	check(err)
	allocatable, err := client.GetAllocatableResources(ctx, &api.AllocatableResourcesRequest{})
	check(err)
	text, err := json.MarshalIndent(answers{List: written(list), Allocatable: written(allocatable)}, "", " ")
	check(err)
	fmt.Println(string(text))
}

func main() {
	switch {
	case len(os.Args) == 3 && os.Args[1] == "read":
		read(os.Args[2])
	case len(os.Args) == 4 && os.Args[1] == "serve":
		listener, err := net.Listen("unix", os.Args[2])
		check(err)
		server := grpc.NewServer()
		api.RegisterPodResourcesListerServer(server, recorded{file: os.Args[3]})
		check(server.Serve(listener))
	default:
		check(fmt.Errorf("usage: %s read SOCKET, or %s serve SOCKET FILE", os.Args[0], os.Args[0]))
	}
}
