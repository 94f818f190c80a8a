// Tests how an app handles a Redeploy of vm-0, through the emulator's control API.
// Start the app first, with FOREWARN_ENDPOINT set. FOREWARN_SERVER is the emulator's operator port.
// In a test project, put the body of Main into a [Fact] or [Test].
using System;
using System.IO;
using System.Net;
using System.Text.RegularExpressions;

static class Check
{
    static readonly string Server = Environment.GetEnvironmentVariable("FOREWARN_SERVER") ?? "http://127.0.0.1:8170";

    static string Post(string path, string body)
    {
        using (var client = new WebClient())
        {
            client.Headers[HttpRequestHeader.ContentType] = "application/json";
            var token = Environment.GetEnvironmentVariable("FOREWARN_TOKEN");
            if (token != null) client.Headers[HttpRequestHeader.Authorization] = "Bearer " + token;
            try { return client.UploadString(Server + path, body); }
            catch (WebException error) when (error.Response != null)
            {
                // A failed expectation answers 409, with the reason and the timeline.
                using (var answer = new StreamReader(error.Response.GetResponseStream()))
                    throw new Exception(answer.ReadToEnd());
            }
        }
    }

    static void Expect(string what) => Post("/v1/emulator/expect", what);

    static void Main()
    {
        var maintenance = Post("/v1/maintenances", "{\"type\": \"Redeploy\", \"targets\": {\"machines\": [\"vm-0\"]}}");
        // With a JSON library: waves[0].events[0].id
        var id = Regex.Match(maintenance, "\"events\":\\[\\{\"id\":\"([0-9A-F-]{36})\"").Groups[1].Value;
        Expect("{\"what\": \"seen\", \"event\": \"" + id + "\", \"machine\": \"vm-0\", \"within_s\": 10}");
        Post("/v1/clock/advance", "{\"seconds\": 120}");
        Expect("{\"what\": \"approval\", \"event\": \"" + id + "\", \"machine\": \"vm-0\", \"times\": 1, \"within_s\": 10}");
        Expect("{\"what\": \"seen\", \"event\": \"" + id + "\", \"machine\": \"vm-0\", \"status\": \"Started\", \"within_s\": 10}");
        Post("/v1/orders/" + id + "/finish", "{}");
        Expect("{\"what\": \"no-more\"}");
        Console.WriteLine("vm-0 saw the Redeploy, approved it once, and saw it start");
    }
}
