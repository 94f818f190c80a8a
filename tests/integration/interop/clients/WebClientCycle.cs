// The whole cycle with WebClient, as programs for the preview did it: 2017-03-01, no Metadata header on the approval,
// DocumentIncarnation as a string, and Expect: 100-continue, which the class sends by itself.
// Usage: mono WebClientCycle.exe http://HOST:PORT
using System;
using System.Globalization;
using System.Net;
using System.Text.RegularExpressions;
using System.Threading;

public static class WebClientCycle
{
    private static string url;

    public static int Main(string[] args)
    {
        url = args[0] + "/metadata/scheduledevents?api-version=2017-03-01";
        string document = WaitFor("\"EventStatus\":\"Scheduled\"");
        string id = Field(document, "EventId");
        DateTime notBefore = DateTime.Parse(Field(document, "NotBefore"), CultureInfo.InvariantCulture).ToUniversalTime();
        if (notBefore < DateTime.UtcNow) throw new Exception("NotBefore lies in the past");
        Console.WriteLine("seen " + id);
        string incarnation = Regex.Match(document, "\"DocumentIncarnation\":([0-9]+)").Groups[1].Value;
        Approve("{\"DocumentIncarnation\":\"" + incarnation + "\",\"StartRequests\":[{\"EventId\":\"" + id + "\"}]}");
        Console.WriteLine("approved");
        WaitFor("\"EventStatus\":\"Started\"");
        Console.WriteLine("started");
        WaitFor("\"Events\":[]");
        Console.WriteLine("gone");
        return 0;
    }

    private static string Ask()
    {
        using (var client = new WebClient())
        {
            client.Headers.Add("Metadata", "true");
            return client.DownloadString(url);
        }
    }

    private static void Approve(string body)
    {
        using (var client = new WebClient())
        {
            client.Headers.Add("Content-Type", "application/json");
            client.UploadString(url, body);
        }
    }

    private static string WaitFor(string part)
    {
        for (int tries = 0; tries < 60; tries++)
        {
            string document = Ask();
            if (document.Contains(part)) return document;
            Thread.Sleep(400);
        }
        throw new Exception("no " + part + " in the document");
    }

    private static string Field(string document, string name)
    {
        return Regex.Match(document, "\"" + name + "\":\"([^\"]*)\"").Groups[1].Value;
    }
}
